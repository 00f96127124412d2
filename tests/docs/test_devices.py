"""The program of the page for browsers, run in node where onnxruntime-web is installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from qtool.backends.onnxruntime.emulation.cache_folder import web_folder
from tests.docs.snippets import ROOT, blocks, run_command
from tests.needs import needs_web

WEB = web_folder() / "node_modules" / "onnxruntime-web" / "dist" / "ort.node.min.mjs"


@needs_web
@pytest.mark.matrix
def test_the_program_of_a_browser_runs_in_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = (b.text for b in blocks("docs/device-browser.md") if "import * as ort" in b.text)
    assert '"onnxruntime-web"' in program
    (tmp_path / "program.mjs").write_text(program.replace("onnxruntime-web", str(WEB)))
    for name in ("examples", "calib_data"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    (convert,) = (
        b.text for b in blocks("docs/device-browser.md") if b.text.startswith("qtool quantize")
    )
    run_command(convert.replace("\\\n", " ").split())
    done = subprocess.run(
        ["node", "program.mjs"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    count, best = map(int, done.stdout.split())
    assert (count, 0 <= best < count) == (10, True)
