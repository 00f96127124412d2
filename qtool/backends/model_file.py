"""The interface of a backend: a model file, and the row of its format.

Conversion, reports, comparisons and searches ask a `ModelFile`, and know no format. A new format is
a folder with one class of these members, a `FileFormat`, which is a row in `table.py`, and a
`ReadableFormat`, which is one in `open_files.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from qtool.backends.readable_file import ReadableFile, ReadableFormat
from qtool.backends.session import OtherRuntime, Session
from qtool.core.graph import FloatGraph
from qtool.core.types import Array, Progress
from qtool.planning.targets import Target
from qtool.verification import Exactness, FileCheck

if TYPE_CHECKING:
    from qtool.backends.export import MakeExport


class ModelFile(ReadableFile, Protocol):
    """A model file with what needs the integer engine and the table of targets."""

    @property
    def runs_here(self) -> bool:
        """Whether the kernels that it was made for are those of this machine."""

    def verify(self, batches: Iterable[Sequence[Array]], progress: Progress) -> FileCheck:
        """Run its self-test, and compare the runtime with the integer engine.

        Args:
            batches: inputs in the order of the file's.
            progress: wraps the batches.

        Raises:
            KernelError: the engine has no kernel of an operator.
            VerificationError: the runtime refuses the file.
        """

    def compare_codes(self, batches: Iterable[Sequence[Array]]) -> Exactness:
        """Compare the runtime with the integer engine.

        Raises:
            KernelError: the engine has no kernel of an operator.
        """

    def write_float(self, path: Path) -> Path:
        """Write the model without quantization, on its rounded weights; return the path.

        Raises:
            VerificationError: the quantization cannot be removed.
        """


@dataclass(frozen=True)
class FileFormat:
    """A format of model files.

    Attributes:
        names: values of `format` in `Quantized.export`.
        suffix: file name extension, such as ".onnx".
        fits: whether a file has this format.
        open: reads one.
        session: opens one in its runtime, with a number of threads (0 lets the runtime choose).
        write_float: writes a canonical graph in float: (graph, path, name of the target).
        export: writes and checks a quantized model.
        check_measurable: checks that the time of files for a target can be measured on this
            machine; raises PlanError or VerificationError with a sentence if it cannot.
        other_runtimes: others that run files of this format.
        runtime: returns the runtime of `session` with its version; "" for ONNX Runtime, which needs
            no name.
        check_graph: checks, before anything is calibrated, that files of this format can hold the
            operators of a graph; raises ExportError.
    """

    names: tuple[str, ...]
    suffix: str
    fits: Callable[[str | Path], bool]
    open: Callable[[Path], ModelFile]
    session: Callable[[str | Path, int], Session]
    write_float: Callable[[FloatGraph, str | Path, str], Path]
    export: MakeExport
    check_measurable: Callable[[Target], None]
    other_runtimes: tuple[OtherRuntime, ...] = ()
    runtime: Callable[[], str] = lambda: ""
    check_graph: Callable[[FloatGraph], None] = lambda _: None

    @property
    def readable(self) -> ReadableFormat:
        """Return what reads its files without torch."""
        return ReadableFormat(
            self.suffix, self.fits, self.open, self.session, self.other_runtimes, self.runtime
        )
