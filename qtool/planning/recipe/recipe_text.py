"""The text of recipes: TOML or JSON."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from qtool.core.errors import FileError


def read(path: Path) -> Any:
    """The file's content. TOML needs Python 3.11 or the package tomli: JSON always works, and a
    dependency for one old version of Python is not worth it."""
    try:
        if path.exists() and not path.is_file():  # a pipe may wait for ever, a device never end
            raise FileError(f"{path}: the recipe cannot be read: it is no ordinary file; name one")
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: the recipe cannot be read ({error})") from error
    if path.suffix == ".json":
        parse: Any = json.loads
    elif path.suffix == ".toml":
        try:
            parse = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads
        except ImportError as error:
            raise FileError(
                f"{path}: reading TOML takes Python 3.11 or `pip install tomli`; the same recipe "
                "can be written as JSON"
            ) from error
    else:
        raise FileError(f"{path}: a recipe is a .toml or a .json file")
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: not {path.suffix.removeprefix('.').upper()} ({error})") from error


def toml(value: str | int | list[str]) -> str:
    """As JSON has it; TOML wants one character more to be written by its number."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
