"""Write a report: check the folder first, measure, then replace the folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qtool.backends.table import open_file
from qtool.core.atomic import check_writable
from qtool.core.store import Store
from qtool.evaluation.history import Run, append_run, make_run, read_history
from qtool.evaluation.report.page.folder import check_folder, replace_folder, resume_folder
from qtool.evaluation.report.page.render import render_pages
from qtool.evaluation.report.page.trend import make_trend
from qtool.evaluation.report.report import Report


@dataclass(frozen=True)
class History:
    """Earlier runs.

    Attributes:
        path: the file of the history.
        file: the quantized file that the report is on.
        name: the path of that file to record.
    """

    path: Path
    file: Path
    name: str

    def read(self) -> list[Run]:
        """Return the earlier runs, and check that one can be appended."""
        check_writable(self.path)
        return read_history(self.path)


def _run_of(report: Report, history: History) -> Run:
    """Return the entry of a report with one model besides the reference."""
    facts, outputs = report.models[-1], report.accuracy.models[-1]
    ratio = report.latency[0].ratios[-1] if report.latency and len(report.models) > 1 else None
    return make_run(
        "report",
        history.file,
        history.name,
        facts.size_bytes,
        verdict="" if facts.verdict is None else facts.verdict.headline,
        speedup=None if ratio is None else ratio.median,
        sqnr_db=outputs.sqnr_db,
        metrics={m.name: m.values[-1] for m in report.accuracy.metrics},
    )


def write_report(
    folder: Path,
    measure: Callable[[Path], Report],
    model: Path | None = None,
    history: History | None = None,
) -> Report:
    """Measure and replace the folder; intermediate results are kept until then.

    Args:
        measure: returns the report; its argument is a folder for intermediate results, from which
            it resumes after an interruption.
        history: where earlier runs are, and this one is appended; the report shows the trend.
        model: a model file, written by `measure`, to copy into the report with its external data.

    Raises:
        FileError: the folder cannot be written, or holds anything but a report.
    """
    check_folder(folder)
    earlier = [] if history is None else history.read()
    keep = resume_folder(folder)
    report = measure(keep)
    parts = [] if model is None else open_file(model).parts
    run = None if history is None else _run_of(report, history)
    trend = None if run is None else make_trend([*earlier, run])
    replace_folder(folder, {**render_pages(report, trend), **{part.name: part for part in parts}})
    if history is not None and run is not None:
        append_run(history.path, run)
    Store(keep).clear()
    return report
