"""Write a report as a folder."""

from __future__ import annotations

from pathlib import Path

from qtool.backends.formats import open_file
from qtool.evaluation.report.page.folder import replace_folder
from qtool.evaluation.report.page.render import render_pages
from qtool.evaluation.report.report import Report


def write_report(folder: Path, report: Report, model: Path | None = None) -> Report:
    """Replace a folder by a report, and return the report.

    Args:
        folder: receives the report; `check_folder` has accepted it.
        report: report on files that still exist.
        model: a model file to copy into the report with its external data.

    Raises:
        FileError: the folder cannot be written.
    """
    parts = [] if model is None else open_file(model).parts
    replace_folder(folder, {**render_pages(report), **{part.name: part for part in parts}})
    return report
