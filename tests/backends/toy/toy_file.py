"""Writing, opening and running .toy files."""

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from qtool.backends.export import ExportOptions, PlannedFile
from qtool.backends.formats import ONNX
from qtool.backends.onnxruntime.onnx_file import OnnxFile
from qtool.core.atomic import atomic_path, scratch_folder
from qtool.core.data import Batch

NAME, SUFFIX = "toy", ".toy"
_MARK = b"TOY1"


def is_toy(path: str | Path) -> bool:
    """Return whether a file begins as one."""
    with Path(path).open("rb") as file:
        return file.read(len(_MARK)) == _MARK


@contextmanager
def unpacked(path: str | Path) -> Iterator[Path]:
    """Yield the ONNX file inside."""
    with scratch_folder() as folder:
        onnx = folder / "model.onnx"
        onnx.write_bytes(Path(path).read_bytes()[len(_MARK) :])
        yield onnx


class ToyFile:
    """See `ModelFile`; what is not here is asked of the ONNX file inside."""

    suffix = SUFFIX

    def __init__(self, path: Path) -> None:
        self.path, self.parts = path, [path]
        folder = tempfile.mkdtemp()
        onnx = Path(folder) / "model.onnx"
        onnx.write_bytes(path.read_bytes()[len(_MARK) :])
        self.onnx = OnnxFile(onnx)
        weakref.finalize(self.onnx, shutil.rmtree, folder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.onnx, name)


def open_session(path: str | Path, threads: int) -> Any:
    """Open a file in its runtime."""
    with unpacked(path) as onnx:
        return ONNX.session(onnx, threads)


def write_float(graph: Any, path: str | Path, target: str) -> Path:
    """Write a graph in float."""
    with scratch_folder() as folder:
        return _pack(ONNX.write_float(graph, folder / "float.onnx", target), Path(path))


class ToyExport:
    """See `Export`."""

    def __init__(self, *model: Any) -> None:
        self.onnx = ONNX.export(*model)

    @contextmanager
    def writing(
        self, path: Path, options: ExportOptions, sample: Batch, verify: bool
    ) -> Iterator[PlannedFile]:
        """Write the ONNX file, and pack it once it is complete."""
        with scratch_folder() as folder:
            onnx = folder / "model.onnx"
            with self.onnx.writing(onnx, replace(options, format="qdq"), sample, verify) as file:
                yield file
            _pack(onnx, path)

    def file(self, path: Path, sample: Batch) -> PlannedFile:
        """Unpack a file; the copy lives as long as the result."""
        packed = ToyFile(path)
        planned: Any = self.onnx.file(packed.onnx.path, sample)
        planned.packed = packed
        return planned

    def __getattr__(self, name: str) -> Any:  # coverage, program
        return getattr(self.onnx, name)


def _pack(onnx: Path, path: Path) -> Path:
    with atomic_path(path, (SUFFIX,)) as temporary:
        temporary.write_bytes(_MARK + onnx.read_bytes())
    return path
