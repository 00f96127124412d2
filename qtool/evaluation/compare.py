"""What a report compares: a float file and a quantized one, or several files of any tool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qtool.backends.formats import open_file
from qtool.core.atomic import resolve
from qtool.core.errors import DataError
from qtool.core.paths import same_file
from qtool.core.progress import Bars, no_bars
from qtool.core.remedies import CallEdit
from qtool.evaluation.build_report import build_report
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.report.report import Report
from qtool.evaluation.same_weights import check_same_files
from qtool.evaluation.subject import Subject

_NO_LAYERS = "layers are not measured when files are compared; use `qtool report` for one model"


def compare_files(
    files: Sequence[Path],
    data: Iterable[Any],
    options: ReportOptions,
    *,
    keep: Path | None = None,
    bars: Bars = no_bars,
) -> Report:
    """Compare several files, of qtool or other tools.

    Args:
        files: the others are compared with the first.
        keep: folder for intermediate results, from which an interrupted run resumes.
    """
    subjects = [Subject(n, f, _describe(f)) for n, f in zip(_names(files), files, strict=True)]
    return build_report(subjects, data, options, layers=_NO_LAYERS, folder=keep, bars=bars)


def ordered_files(
    files: Sequence[str | Path], reference: str | Path | None, other_model: bool
) -> list[Path]:
    """Return the files of a comparison, the reference first.

    Raises:
        DataError: a single file, or one that is named twice.
        FileError: not a model file.
        VerificationError: see `check_same_files`.
    """
    paths = [Path(f) for f in files]
    if (same := same_file(paths)) is not None:
        raise DataError(f"{same[0]} and {same[1]} are one file", CallEdit("name each file once"))
    first = paths[0] if reference is None and paths else Path(reference or "")
    ordered = [first, *(p for p in paths if same_file([first, p]) is None)]
    if reference is None:
        ordered = paths
    if len(ordered) < 2:
        count = "is one file" if ordered else "is no file"
        raise DataError(f"there {count}", CallEdit("give two or more to compare"))
    for path in ordered:
        open_file(path)
    check_same_files(ordered, other_model)
    return ordered


def titled(options: ReportOptions | None, folder: Path | None, title: str = "") -> ReportOptions:
    """Return the options with a title, by default the folder's name; `title` without one."""
    chosen = options or ReportOptions()
    name = title if folder is None else resolve(folder).name
    return chosen if chosen.title else replace(chosen, title=name)


def _describe(path: Path) -> str:
    file = open_file(path)
    return f"{'quantized' if file.is_quantized else 'float'}, made by {file.maker}"


def _names(files: Sequence[Path]) -> list[str]:
    """Return unique short names: file names, or paths if those repeat."""
    suffixes = {f: open_file(f).suffix for f in files}
    stems = [f.name.removesuffix(suffixes[f]) for f in files]
    paths = [str(f).removesuffix(suffixes[f]) for f in files]
    unique = (names for names in (stems, paths) if len(set(names)) == len(names))
    return next(unique, [str(f) for f in files])
