"""Write a report: check the folder first, measure, then replace the folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qtool.backends.formats import open_file
from qtool.core.atomic import check_writable
from qtool.core.store import Store
from qtool.evaluation.history import Run, append_run, read_history, run_of
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
        run, own = None, self.history
        if own is not None:
            run = run_of("report", report, own.file, own.name)
        pages = render_pages(report, None if run is None else make_trend([*self.earlier, run]))
        replace_folder(self.path, {**pages, **{part.name: part for part in parts}})
        if self.history is not None and run is not None:
            append_run(self.history.path, run)
        Store(self.kept).clear()
        return report
