"""The interface of a backend: a model file, what files hold, and the row of a format.

Commands ask a `ModelFile`, and know no format. A new format is a folder with one class of these
members and a `FileFormat`, which is a row in `formats.py`. What needs torch, it imports on use.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from qtool.backends.onnx.file_info import FileInfo
from qtool.backends.session import OtherRuntime, Session
from qtool.core.output_evidence import Evidence
from qtool.core.types import Array, Progress
from qtool.verification import Coverage, Exactness, FileCheck, SelfCheck

if TYPE_CHECKING:
    from qtool.backends.export import MakeExport
    from qtool.core.graph import FloatGraph
    from qtool.planning.targets import Target

OTHER = "(runtime)"
"""Nodes of the runtime that belong to no operator of the file."""


@dataclass(frozen=True)
class TensorParameters:
    """One quantized tensor: its integer type, scales and zero points."""

    tensor: str
    dtype: str
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]

    def row(self) -> tuple[str, str, str, str]:
        return self.tensor, self.dtype, _summary(self.scales), _summary(self.zero_points)


def _summary(values: tuple[float, ...]) -> str:
    if len(values) == 1:
        return f"{values[0]:.6g}"
    low, high = min(values), max(values)
    return (
        f"{low:.6g} ({len(values)})" if low == high else f"{low:.4g} .. {high:.4g} ({len(values)})"
    )


@dataclass(frozen=True)
class NodeKernel:
    """What runs for an operator.

    Attributes:
        kernels: kernels of the runtime, in words.
        microseconds: time of one run: the median over runs, see `median_of_ticks`.
    """

    kernels: str
    microseconds: float


def median_of_ticks(times: Sequence[float]) -> float:
    """Return the median over runs, of times in whole ticks to a fraction of a tick.

    Half of the runs may fall into moments of other load. The runtime's profile counts whole
    microseconds, which a plain median of short kernels would keep.
    """
    return max(0.0, statistics.median_grouped(times))


class StoredParameters(Protocol):
    """Parameters and codes of quantization points in a file."""

    def parameters(self, point: str, root: str) -> tuple[Array, Array]:
        """Return scale (float32) and zero point (int64) of a point, or of the one it follows.

        Raises:
            VerificationError: the file has none.
        """

    def codes(self, point: str) -> Array | None:
        """Return the codes of a constant; None if the file has none."""

    def split(self, outputs: Mapping[str, int]) -> StoredParameters:
        """Return the parameters with fused projections split into their layers.

        Args:
            outputs: number of outputs of the layer of each weight point.
        """


@dataclass(frozen=True)
class Conversion:
    """What a file of qtool says of its conversion.

    Attributes:
        info: target, recipe, decisions, changes.
        stored: parameters and codes.
    """

    info: FileInfo
    stored: StoredParameters


@dataclass(frozen=True)
class Deployment:
    """What a file needs on a microcontroller.

    Attributes:
        flash_bytes: size of the file.
        arena_bytes: working memory of TensorFlow Lite Micro, on a 64-bit machine; None where that
            is not installed or refuses the file.
        tensor_bytes: part of the arena for the tensors that are needed at one time.
        notes: sentences: what is not installed, or refuses the file.
    """

    flash_bytes: int
    arena_bytes: int | None = None
    tensor_bytes: int | None = None
    notes: tuple[str, ...] = ()


class ModelFile(Protocol):
    """A model file, with its runtime and its checks.

    Attributes:
        path: path of the file.
        suffix: file name extension of its format.
    """

    path: Path
    suffix: str

    @property
    def parts(self) -> list[Path]:
        """The file, and those that hold its weights."""

    @property
    def is_quantized(self) -> bool:
        """Whether it has quantized tensors."""

    @property
    def maker(self) -> str:
        """The tool that wrote it, in words."""

    @property
    def target(self) -> str | None:
        """The target that qtool wrote it for; None for files of other tools."""

    @property
    def runs_here(self) -> bool:
        """Whether the kernels that it was made for are those of its runtime on this machine."""

    @property
    def takes_one_sample(self) -> bool:
        """Whether its batch is fixed to 1, and its session runs a batch sample by sample."""

    def input_ranges(self) -> Mapping[str, tuple[float, float]]:
        """Return the least and the largest value of inputs that are quantized or select rows."""

    def known_sizes(self) -> Mapping[str, int]:
        """Return dynamic dimension -> a size that it takes, of those that the file records."""

    def conversion(self) -> Conversion | None:
        """Return what restores its model; None for files of other tools.

        Raises:
            VerificationError: the metadata is damaged.
        """

    def parameters(self) -> Sequence[TensorParameters]:
        """Return the parameters of each quantized tensor."""

    def constants(self) -> Iterator[Array]:
        """Yield the numbers that it stores, in any order, in the layout of the file; but codes with
        a scale for each block of a row."""

    def self_test(self) -> str:
        """Describe the test of itself that the file carries, in a sentence."""

    def notes(self) -> str:
        """Return what else it says of itself, in lines."""

    def coverage(self) -> Coverage:
        """Return what runs in integers."""

    def output_evidence(self) -> Mapping[str, Evidence]:
        """Return what the graph and the metadata say of each output."""

    def node_names(self) -> list[str]:
        """Return the inputs and the operators in order, by the names of the user's model."""

    def node_times(self, inputs: Sequence[Array], threads: int, runs: int) -> dict[str, NodeKernel]:
        """Return what runs for each operator, and for how long; empty without a profile."""

    def deployment(self) -> Deployment | None:
        """Return what it needs on a microcontroller; None for files of other processors."""

    def check_self_test(self) -> SelfCheck:
        """Run its self-test: is it unmodified, and does it give the expected results here?"""

    def verify(self, batches: Iterable[Sequence[Array]], progress: Progress) -> FileCheck:
        """Run its self-test, and compare the runtime with the integer engine, which needs torch.

        Args:
            batches: inputs in the order of the file's.
            progress: wraps the batches.

        Raises:
            KernelError: the engine has no kernel of an operator.
            VerificationError: the runtime refuses the file.
        """

    def compare_codes(self, batches: Iterable[Sequence[Array]]) -> Exactness:
        """Compare the runtime with the integer engine, which needs torch.

        Raises:
            KernelError: the engine has no kernel of an operator.
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
