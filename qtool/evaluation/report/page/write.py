"""A report written: the folder is checked before the work and replaced after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from qtool.backends.onnx.storage import model_files
from qtool.core.store import Store
from qtool.evaluation.report.page.folder import check_folder, replace_folder, resume_folder
from qtool.evaluation.report.page.render import render_pages
from qtool.evaluation.report.report import Report


def write_report(
    folder: Path, measure: Callable[[Path], Report], model: Path | None = None
) -> Report:
    """Measures and replaces the folder; what was measured is kept until that is done.

    Args:
        measure: makes the report; it is given a folder for results, from which it goes on after an
            interruption.
        model: an ONNX file that belongs to the report, with the data that it names; it is there
            after `measure`.

    Raises:
        FileError: the folder cannot be written, or holds something else than a report.
    """
    check_folder(folder)
    keep = resume_folder(folder)
    report = measure(keep)
    parts = [] if model is None else model_files(model)
    replace_folder(folder, {**render_pages(report), **{part.name: part for part in parts}})
    Store(keep).clear()
    return report
