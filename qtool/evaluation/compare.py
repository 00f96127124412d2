"""What a report compares: several files of any tool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qtool.backends.formats import open_file
from qtool.core.errors import DataError
from qtool.core.path_arguments import model_file, model_files
from qtool.core.paths import same_file
from qtool.core.remedies import CallEdit
from qtool.evaluation.same_weights import check_same_files
from qtool.evaluation.subject import Subject

NO_LAYERS = "layers are not measured when files are compared; use `qtool report` for one model"


def compared_subjects(files: Sequence[Path]) -> list[Subject]:
    """Return files, of qtool or other tools, as subjects with unique names."""
    return [Subject(n, f, _describe(f)) for n, f in zip(_names(files), files, strict=True)]


def ordered_files(
    files: Sequence[str | Path], reference: str | Path | None, other_model: bool
) -> list[Path]:
    """Return the files of a comparison, the reference first.

    Raises:
        DataError: a single file, or one that is named twice.
        FileError: not a model file.
        VerificationError: see `check_same_files`.
    """
    paths = model_files(files)
    if (same := same_file(paths)) is not None:
        raise DataError(f"{same[0]} and {same[1]} are one file", CallEdit("name each file once"))
    first = paths[0] if reference is None and paths else model_file(reference or "")
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
