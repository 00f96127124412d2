"""One ONNX file, the graph that ONNX Runtime executes for it, and its outputs, each thing once."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import onnx
import onnxruntime as ort

from qtool.backends.onnx import storage
from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnxruntime.disable_input_rounding import depends_on_threads
from qtool.backends.onnxruntime.session import optimised_graph, read_graph, run, session
from qtool.backends.runtime import Arrays
from qtool.core.atomic import scratch_folder
from qtool.core.errors import VerificationError
from qtool.core.types import Array


class ExecutedFile:
    """An ONNX file on disk that does not change. Its properties are computed when first used.

    Args:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._session: ort.InferenceSession | None = None
        self._optimised: onnx.ModelProto | None = None
        self._last: tuple[Arrays, list[Array]] | None = None

    @classmethod
    def of(cls, file: ExecutedFile | str | Path) -> ExecutedFile:
        """Return `file` itself if it is an `ExecutedFile`, else one for this path."""
        return file if isinstance(file, ExecutedFile) else cls(file)

    @cached_property
    def file(self) -> OnnxModel:
        """The parsed file.

        Raises:
            FileError: not an ONNX file, or its external data is missing.
        """
        return OnnxModel.of(self.path)

    def _open_session(self) -> ort.InferenceSession:
        threads = int(depends_on_threads(self.file.outline.graph))  # 0: the runtime decides
        if self._session is None and self._optimised is not None:
            self._session = session(self.path, threads=threads, once=True)
        if self._session is None:
            with scratch_folder() as folder:
                saved = folder / "optimised.onnx"
                self._session = session(self.path, save_to=saved, threads=threads, once=True)
                self._optimised = read_graph(saved)
        return self._session

    def load(self) -> None:
        """Load the file into the runtime.

        Raises:
            VerificationError: the runtime does not load it.
        """
        self._open_session()

    def close(self) -> None:
        """Free the session; computed results stay."""
        self._session = None

    def run(self, arrays: Arrays) -> list[Array]:
        """Return outputs with the runtime's default optimisation; the last ones are cached."""
        if self._last is None or self._last[0] is not arrays:
            self._last = arrays, run(self._open_session(), list(arrays))
        return self._last[1]

    @cached_property
    def executed_graph(self) -> onnx.ModelProto:
        """The graph that the runtime executes, without weights.

        Nodes without a name are named after their first output, in `file` too.
        """
        if not self.file.has_unnamed_nodes:
            if self._optimised is None:
                self._open_session()
            assert self._optimised is not None
            return self._optimised
        model = storage.load(self.path)
        for node in model.graph.node:
            node.name = node.name or next(iter(node.output), "")
        with scratch_folder() as folder:
            named = folder / "named.onnx"
            storage.save(model, named)
            try:
                return optimised_graph(named)
            except VerificationError:
                self._open_session()  # its error has the name of the file
                raise
