"""The user's own code: attributes of objects, where an error is, and what torch.compile wraps."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import Any

_STANDARD_LIBRARY = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib")))


def user_place(error: BaseException) -> str:
    """Return the deepest line of the user's code that an error passed, in parentheses and with a
    space in front; "" if there is none."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        if frame.f_globals.get("__name__", "").partition(".")[0] == "qtool" or _is_library(file):
            continue
        place = f" ({_shown(file)}, line {line})"
    return place


def uncompiled(model: Any) -> Any:
    """Return the module that torch.compile wraps, which computes the same with the arguments of its
    own; another object as it is."""
    return attribute(model, "_orig_mod", default=model)


def _shown(file: Path) -> Path:
    """Return a path as it is shown: relative below the working directory, if there is one."""
    try:
        here = Path.cwd()
    except OSError:
        return file
    return file.relative_to(here) if file.is_relative_to(here) else file


def _is_library(file: Path) -> bool:
    """Return whether a file of code belongs to Python or to an installed package."""
    installed = "site-packages" in file.parts or str(file).startswith("<")
    return installed or any(file.is_relative_to(folder) for folder in _STANDARD_LIBRARY)


def attribute(owner: Any, *names: str, default: Any = None) -> Any:
    """Return an attribute of an object, or of its attribute (`model`, "config", "vocab_size").

    Returns:
        The default where there is none, or where reading it raises any error.
    """
    try:
        for name in names:
            owner = getattr(owner, name)
    except Exception:  # noqa: BLE001  # a property or __getattr__ of the user's
        return default
    return owner
