"""Write a report: check the folder first, measure, then replace the folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qtool.backends.formats import open_file
from qtool.core.store import Store
from qtool.evaluation.report.page.folder import check_folder, replace_folder, resume_folder
from qtool.evaluation.report.page.render import render_pages
from qtool.evaluation.report.report import Report


@dataclass(frozen=True)
class ReportFolder:
    """The folder of a report: checked before the measurement, and replaced after it.

    Attributes:
        path: receives the report.
        kept: folder for intermediate results, from which an interrupted run resumes.
    """

    path: Path
    kept: Path

    @classmethod
    def of(cls, path: Path) -> ReportFolder:
        """Return the folder of a report that is not measured yet.

        Raises:
            FileError: the folder cannot be written, or holds anything but a report.
        """
        check_folder(path)
        return cls(path, resume_folder(path))

    def write(self, report: Report, model: Path | None = None) -> Report:
        """Replace the folder by a report, remove intermediate results, and return the report.

        Args:
            report: report on files that still exist.
            model: a model file to copy into the report with its external data.

        Raises:
            FileError: the folder cannot be written.
        """
        parts = [] if model is None else open_file(model).parts
        replace_folder(self.path, {**render_pages(report), **{part.name: part for part in parts}})
        Store(self.kept).clear()
        return report
