"""What the commands alone print with --json, as dataclasses; `document_table` has all.

Imports the library, and so torch: commands import this module when they print.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qtool.blockwise.checkpoint import BlockRecord
from qtool.evaluation.speedup import Speedup
from qtool.metrics.metric import Metric

if TYPE_CHECKING:
    from qtool.api.quantized_file import QuantizedFile


@dataclass(frozen=True)
class Envelope:
    """The first keys of every document.

    Attributes:
        schema: raised when a key of the command's document is removed or changes its meaning.
        command: the command that printed the document.
        qtool: version of qtool.
    """

    schema: int
    command: str
    qtool: str


@dataclass(frozen=True)
class ErrorText:
    """An error.

    Attributes:
        type: class of the exception.
        message: one sentence.
        exit_code: exit code of the command.
    """

    type: str
    message: str
    exit_code: int


@dataclass(frozen=True)
class Error:
    """Printed instead of a command's document if it fails.

    Attributes:
        error: what went wrong.
    """

    error: ErrorText


@dataclass(frozen=True)
class CalibrationFile:
    """A calibration file that was written.

    Attributes:
        file: its path.
        samples: number of calibration samples.
        tensors: number of tensors with statistics.
        observer: range estimator, with its parameter.
        notes: sentences for the user.
    """

    file: Path
    samples: int
    tensors: int
    observer: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ModelFile:
    """An ONNX file that was written.

    Attributes:
        file: its path.
        size_bytes: size of the file and of its external data.
        target: runtime that it is quantized for.
        mode: default quantization scheme.
        speed: comparison with the float model; null if it was not timed.
        min_coverage_met: whether --min-coverage is met; true without it.
        min_sqnr_met: whether --min-sqnr is met; true without it.
        metrics: results of `quantize` with --labels or --eval-data, float model first; those of
            the file alone where a block-wise conversion has no memory for both.
        float_size_bytes: size of the float model's file; of a torch model, of its ONNX file, and
            in a block-wise conversion of its float32 weights.
        blocks: records of a block-wise conversion, in order.
    """

    file: Path
    size_bytes: int
    target: str
    mode: str
    speed: Speedup | None
    min_coverage_met: bool
    min_sqnr_met: bool
    metrics: tuple[Metric, ...] = ()
    float_size_bytes: int = 0
    blocks: tuple[BlockRecord, ...] = ()

    @classmethod
    def of(cls, file: QuantizedFile) -> ModelFile:
        """Return the document of a file that was written."""
        missed = file.missed
        return cls(
            file.path,
            file.size_bytes,
            file.target,
            file.mode,
            file.speed,
            min_coverage_met=not missed["min_coverage"],
            min_sqnr_met=not missed["min_sqnr"],
            metrics=() if file.accuracy is None else file.accuracy.metrics,
            float_size_bytes=file.float_size_bytes,
            blocks=file.blocks,
        )


@dataclass(frozen=True)
class Outcome:
    """What the exit code says of a file that was written.

    Attributes:
        passed: whether the checks passed and all goals are met.
    """

    passed: bool


@dataclass(frozen=True)
class TunedFile:
    """The best file of a search.

    Attributes:
        file: its path.
    """

    file: Path
