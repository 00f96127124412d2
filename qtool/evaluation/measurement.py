"""What is measured of several files on the same data, whatever shows it."""

from __future__ import annotations

from dataclasses import dataclass

from qtool.backends.formats import runtime_title
from qtool.backends.model_file import ModelFile
from qtool.core.option_names import NATIVE
from qtool.evaluation.latency.interleaved_timing import Timing
from qtool.evaluation.measure.accuracy import Accuracy
from qtool.verification import Coverage, Exactness


@dataclass(frozen=True, eq=False)
class Measurement:
    """Several files on the same data, the float model first.

    Attributes:
        files: the files.
        accuracy: errors of the outputs, agreement and metrics of each file.
        timings: latency of all files, one for each batch size, number of threads and phase.
        coverages: audit of each file; None where there is none.
        exactness: exactness of each file; None if it was not compared with the integer engine.
        float_bytes: size of the user's own float file; 0: that of the first file.
    """

    files: tuple[ModelFile, ...]
    accuracy: Accuracy
    timings: tuple[Timing, ...]
    coverages: tuple[Coverage | None, ...]
    exactness: tuple[Exactness | None, ...] = ()
    float_bytes: int = 0

    def size(self, i: int) -> int:
        """Return the bytes of a file and its external data."""
        own = sum(part.stat().st_size for part in self.files[i].parts)
        return self.float_bytes or own if i == 0 else own

    def shares(self, i: int) -> tuple[float, float, int]:
        """Return the shares of the MACs in integer kernels and with integer weights alone, and the
        number of operators whose work is not known."""
        audit = self.coverages[i]
        return (
            (0.0, 0.0, 0)
            if audit is None
            else (audit.share, audit.weight_share, audit.unknown_operators)
        )


def runtime_of(file: ModelFile) -> str:
    """Return where a file was timed on this machine, "" for an ONNX file that is for this machine.

    For others: "in LiteRT 2.1.0", "in LiteRT 2.1.0, on this CPU, not on tflite-micro".
    """
    title = runtime_title(NATIVE, file.suffix)
    place = "" if file.runs_here else f"on this CPU, not on {file.target}"
    return ", ".join(filter(None, [f"in {title}" if title else "", place]))
