"""A report written: the folder is checked before the work and replaced after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from qtool.analysis.report import Report
from qtool.page.folder import check_folder, publish, resume_folder
from qtool.page.render import pages
from qtool.store import Store

__all__ = ["write_report"]


def write_report(
    folder: Path, measure: Callable[[Path], Report], extra: Mapping[str, Path] | None = None
) -> Report:
    """Measures and replaces the folder; what was measured is kept until that is done.

    Args:
        measure: makes the report; it is given a folder for results, from which it goes on after an
            interruption.
        extra: files that belong to the report, by their names in it; read after `measure`.

    Raises:
        FileError: the folder cannot be written, or holds something else than a report.
    """
    check_folder(folder)
    keep = resume_folder(folder)
    report = measure(keep)
    others = {name: path.read_bytes() for name, path in (extra or {}).items()}
    publish(folder, pages(report) | others)
    Store(keep).clear()
    return report
