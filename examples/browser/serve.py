"""Serves the page of this folder with models and JavaScript packages of other folders.

    npm install @huggingface/transformers
    qtool quantize examples/sentence_encoder/model --target onnxruntime-web \\
        --layout transformers.js --data examples/sentence_encoder/calibration.txt \\
        -o models/sentence_encoder
    qtool quantize examples/language_model/model --target onnxruntime-web --mode dynamic \\
        --layout transformers.js --task text-generation-with-past --max-length 96 \\
        --data examples/language_model/calibration.txt -o models/language_model
    python -m examples.browser.serve models node_modules
"""

from __future__ import annotations

import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent


class Handler(SimpleHTTPRequestHandler):
    """Finds /models/ and /modules/ in folders of their own."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def __init__(self, *args: Any, folders: dict[str, Path], **kwargs: Any) -> None:
        self.folders = folders
        super().__init__(*args, **kwargs)

    def translate_path(self, path: str) -> str:
        first, _, rest = path.lstrip("/").partition("/")
        if first not in self.folders:
            return super().translate_path(path)
        self.directory = str(self.folders[first].resolve())
        return super().translate_path(f"/{rest}")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the standard library's
        """Say nothing of each request."""


def server(models: Path, modules: Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server on this machine alone; port 0 is a free one."""
    folders = {"models": models, "modules": modules}
    handler = partial(Handler, folders=folders, directory=str(PAGE))
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


def main() -> None:
    models, modules = map(Path, sys.argv[1:3])
    with server(models, modules, port=8000) as running:
        print(f"http://127.0.0.1:{running.server_address[1]}/")
        running.serve_forever()


if __name__ == "__main__":
    main()
