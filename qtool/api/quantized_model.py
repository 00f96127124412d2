"""The quantized model as people get it: with what measures it and draws what was found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from qtool.conversion.quantized import Quantized
from qtool.core.atomic import resolve, scratch_folder
from qtool.core.path_arguments import accepts_paths
from qtool.evaluation.latency.speedup import Speedup, measure_speedup
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.progress_bars import ProgressBars, no_bars
from qtool.evaluation.report.compare import measure_quantized
from qtool.evaluation.report.report import Report
from qtool.verification import Verification

LOOK = 0.05  # seconds
SMALL = 2 * 10**7  # MACs of a sample: what rounding costs tells in small models


class QuantizedModel(Quantized):
    """A model on the grid of its integers, callable as the float model was.

    Calling it runs fake quantization in torch (with a straight-through gradient to its own copies
    of the weights); `export` writes the integer model, `report` says whether to ship it.
    """

    @accepts_paths("path")
    def export(
        self,
        path: str | Path,
        verify: bool = True,
        *,
        format: str = "qdq",  # noqa: A002  # the word of the field
        external_data: bool = False,
        timing: float | None = None,
    ) -> Verification | None:
        """Writes the integer model, after showing that it is right; see `Quantized.export`.

        Args:
            path, verify, format, external_data: as there.
            timing: seconds to time the file for beside the float model (see `speed`), which the
                result then says, and what costs most where int8 is slower; 0 leaves it out. By
                default a small model is looked at for a moment, and nothing is said unless int8
                is slower.
        """
        result = super().export(path, verify, format=format, external_data=external_data)
        if result is None:
            return result
        if timing is None:
            return replace(result, remarks=self._slower(path, result.coverage.macs))
        found = self.speed(path, timing) if timing else None
        said = () if found is None else (str(found), found.warning())
        return replace(result, remarks=tuple(filter(None, said)))

    def _slower(self, path: str | Path, macs: int) -> tuple[str, ...]:
        """A warning where int8 is clearly slower: what rounding costs is fixed, and what integers
        save grows with the model."""
        found = self.speed(path, LOOK) if LOOK and macs < SMALL else None
        if found is None or found.timing.ratios[1].high >= 1:
            return ()
        return (found.warning() or "",)

    @accepts_paths("folder")
    def report(
        self,
        data: Iterable[Any],
        folder: str | Path,
        options: ReportOptions | None = None,
        *,
        origin: str = "quantized by qtool",
        bars: ProgressBars = no_bars,
    ) -> Report:
        """Measures this model beside its float model, and writes a report to look at.

        Args:
            data: batches, in the order of the labels in `options`.
            folder: to write report.html, report.md, report.json and the model to.
            options: labels, metrics, goals, what to time.
            origin: how this model was made, in words.
            bars: makes a progress bar from a title and a length.

        Raises:
            DataError: data, labels or the evaluation function are of no use.
            FileError: the folder cannot be written, or holds something else than a report.
        """
        from qtool.evaluation.report.page.folder import MODEL
        from qtool.evaluation.report.page.write import write_report  # draws, and loads what draws

        place, asked = Path(folder), options or ReportOptions()
        if not asked.title:
            asked = replace(asked, title=resolve(place).name)
        with scratch_folder() as work:
            file = work / MODEL

            def measure(keep: Path) -> Report:
                return measure_quantized(
                    self, file, data, asked, origin=origin, keep=keep, bars=bars
                )

            return write_report(place, measure, file)

    @accepts_paths("path")
    def speed(self, path: str | Path, seconds: float = 1.0) -> Speedup | None:
        """Times an exported file beside the float model; None where its target runs elsewhere.

        One sample, one thread, runs in turn; where int8 is slower, `Speed.warning()` names the
        operators that cost it.

        Raises:
            VerificationError: ONNX Runtime refuses one of the files.
        """
        return measure_speedup(self, path, seconds=seconds)
