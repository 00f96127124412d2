"""Write a report: check the folder first, measure, then replace the folder."""

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
    """Measure and replace the folder; intermediate results are kept until then.

    Args:
        measure: returns the report; its argument is a folder for intermediate results, from which
            it resumes after an interruption.
        model: an ONNX file, written by `measure`, to copy into the report with its external data.

    Raises:
        FileError: the folder cannot be written, or holds anything but a report.
    """
    check_folder(folder)
    keep = resume_folder(folder)
    report = measure(keep)
    parts = [] if model is None else model_files(model)
    replace_folder(folder, {**render_pages(report), **{part.name: part for part in parts}})
    Store(keep).clear()
    return report
