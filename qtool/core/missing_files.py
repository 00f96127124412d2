"""The error of a path with nothing under it."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from qtool.core.errors import CaptureError, QtoolError
from qtool.core.remedies import CallEdit, OtherFile, Remedy

_CODE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\(.*\))?")
_SIMILAR = 0.75  # ratio of equal letters


def missing(path: str | os.PathLike[str], kind: type[QtoolError], what: str = "file") -> QtoolError:
    """Return the error that there is no such file, with a path that the user may have meant.

    Args:
        path: as the user wrote it.
        kind: class of the error.
        what: that is missing.
    """
    if what == "file" and _CODE.fullmatch(str(path)):
        made = CallEdit("give a file: `qtool quantize` writes one of code that builds a model")
        return kind(f"{path}: no such file", made)
    return kind(f"{path}: no such {what}", *path_remedies(path))


def check_task_folder(source: str, task: str | None) -> None:
    """Check that there is something at the path that a task is for.

    Raises:
        CaptureError: there is nothing.
    """
    if task is not None and ":" not in source and not Path(source).exists():
        raise missing(source, CaptureError, "folder")


def path_remedies(path: str | os.PathLike[str]) -> list[Remedy]:
    """Return what to write in place of a path with nothing under it, if that is known."""
    text = os.fspath(path)
    if text.startswith("~"):
        return [OtherFile(f"write {os.path.expanduser(text)}: only a shell replaces ~")]  # noqa: PTH111
    similar = _similar(Path(text))
    return [OtherFile(f"did you mean {similar}?")] if similar is not None else []


def _similar(path: Path) -> Path | None:
    """Return the file or folder next to a path whose name is most similar."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")]
    except (OSError, ValueError):
        return None
    if path.name in names:
        return None  # a pipe or a device
    longer = [name for name in names if Path(name).stem == path.name]
    alike = [name for name in names if Path(name).suffix == path.suffix]
    similar = [*longer, *difflib.get_close_matches(path.name, alike, 1, _SIMILAR)]
    return path.with_name(similar[0]) if similar and path.name else None
