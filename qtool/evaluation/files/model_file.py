"""A model file: one class per format, and what all of them answer.

Reports, comparisons and searches ask a `ModelFile`, and know no format. A new format is one class
with these members, and a row in `_FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from qtool.backends.onnx.file_info import FileInfo
from qtool.backends.tflite.file import is_tflite
from qtool.core.errors import FileError
from qtool.core.paths import is_file
from qtool.core.types import Array
from qtool.evaluation.files.deployment import Deployment
from qtool.evaluation.files.parameters import TensorParameters
from qtool.verification import Coverage, Exactness

OTHER = "(runtime)"
"""Nodes of the runtime that belong to no operator of the file."""


@dataclass(frozen=True)
class NodeKernel:
    """What runs for an operator.

    Attributes:
        kernels: of the runtime.
        microseconds: of one run: interquartile mean over runs, which excludes moments of other
            load and resolves fractions of the runtime's whole microseconds.
    """

    kernels: str
    microseconds: float


def interquartile_mean(times: Sequence[float]) -> float:
    """Return the mean of the middle half."""
    ordered, cut = np.sort(times), len(times) // 4
    return float(ordered[cut : len(times) - cut].mean())


class StoredParameters(Protocol):
    """Parameters and codes of quantization points in a file."""

    def parameters(self, point: str, root: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale (float32) and zero point (int64) of a point, or of the one it follows.

        Raises:
            VerificationError: the file has none.
        """

    def codes(self, point: str) -> torch.Tensor | None:
        """Return the codes of a constant; None if the file has none."""


@dataclass(frozen=True)
class Conversion:
    """What a file of qtool says of its conversion.

    Attributes:
        info: target, recipe, decisions, changes.
        stored: parameters and codes.
    """

    info: FileInfo
    stored: StoredParameters


class ModelFile(Protocol):
    """A model file that can be run.

    Attributes:
        path: of the file.
        suffix: of files of its format.
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
        """Whether the kernels that it was made for are those of this machine."""

    def conversion(self) -> Conversion | None:
        """Return what restores its model; None for files of other tools.

        Raises:
            VerificationError: the metadata is damaged.
        """

    def parameters(self) -> Sequence[TensorParameters]:
        """Return the parameters of each quantized tensor."""

    def notes(self) -> str:
        """Return what else it says of itself, in lines."""

    def coverage(self) -> Coverage:
        """Return what runs in integers."""

    def compare_codes(self, batches: Iterable[Sequence[Array]]) -> Exactness:
        """Compare the runtime with the integer engine.

        Raises:
            KernelError: the engine has no kernel of an operator.
        """

    def node_names(self) -> list[str]:
        """Return the inputs and the operators in order, by the names of the user's model."""

    def node_times(self, inputs: Sequence[Array], threads: int, runs: int) -> dict[str, NodeKernel]:
        """Return what runs for each operator, and for how long."""

    def write_float(self, path: Path) -> Path:
        """Write the model without quantization, on its rounded weights; return the path.

        Raises:
            VerificationError: the quantization cannot be removed.
        """

    def deployment(self) -> Deployment | None:
        """Return what it needs on a microcontroller; None for files of other processors."""


def _open_onnx(path: Path) -> ModelFile:
    from qtool.evaluation.files.onnx_file import OnnxFile  # each format imports this module

    return OnnxFile(path)


def _open_tflite(path: Path) -> ModelFile:
    from qtool.evaluation.files.tflite import TfliteModelFile

    return TfliteModelFile(path)


_FORMATS: tuple[tuple[Callable[[Path], bool], Callable[[Path], ModelFile]], ...] = (
    (is_tflite, _open_tflite),
    (lambda _: True, _open_onnx),
)
"""Whether a file has a format, and its class; the first that fits."""


def open_file(path: str | Path) -> ModelFile:
    """Return a file of any format.

    Raises:
        FileError: there is no such file, or it is no model.
    """
    path = Path(path)
    if not is_file(path):
        raise FileError(f"{path}: no such file")
    return next(make for fits, make in _FORMATS if fits(path))(path)


def check_quantized(path: str | Path) -> None:
    """Check that a file has something to verify.

    Raises:
        FileError: no model, or one without quantized operators.
    """
    if not open_file(path).is_quantized:
        raise FileError(
            f"{path}: it has no quantized operator, so there is nothing to verify; give the file "
            "that `qtool quantize` wrote"
        )


def quantization_warnings(file: ModelFile) -> list[str]:
    """Return a sentence if a file that should be quantized is not."""
    if file.is_quantized:
        return []
    return [f"{file.path.name} is not quantized: no tensor in it is int8 or of fewer bits"]
