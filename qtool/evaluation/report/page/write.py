"""Write a report: check the folder first, measure, then replace the folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qtool.backends.formats import open_file
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


@dataclass(frozen=True)
class ReportFolder:
    """The folder of a report: checked before the measurement, and replaced after it.

    Attributes:
        path: receives the report.
        kept: folder for intermediate results, from which an interrupted run resumes.
        history: where earlier runs are, and this one is appended; the report shows the trend.
        earlier: these runs.
    """

    path: Path
    kept: Path
    history: History | None = None
    earlier: tuple[Run, ...] = ()

    @classmethod
    def of(cls, path: Path, history: History | None = None) -> ReportFolder:
        """Return the folder of a report that is not measured yet.

        Raises:
            FileError: the folder cannot be written, or holds anything but a report.
        """
        check_folder(path)
        earlier = () if history is None else tuple(history.read())
        return cls(path, resume_folder(path), history, earlier)

    def write(self, report: Report, model: Path | None = None) -> Report:
        """Replace the folder by a report, remove intermediate results, and return the report.

        Args:
            report: report on files that still exist.
            model: a model file to copy into the report with its external data.

        Raises:
            FileError: the folder cannot be written.
        """
        parts = [] if model is None else open_file(model).parts
        run = None if self.history is None else _run_of(report, self.history)
        pages = render_pages(report, None if run is None else make_trend([*self.earlier, run]))
        replace_folder(self.path, {**pages, **{part.name: part for part in parts}})
        if self.history is not None and run is not None:
            append_run(self.history.path, run)
        Store(self.kept).clear()
        return report
