"""Reads and writes the text of recipes: TOML or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qtool.core.text_files import read_toml_or_json


def read_recipe(path: Path) -> Any:
    """Return the parsed content of a recipe file.

    Raises:
        FileError: the file cannot be read or parsed, or is neither .toml nor .json.
    """
    return read_toml_or_json(path, "recipe")


def toml_value(value: str | int | list[str]) -> str:
    """Return a value as TOML: JSON, but DEL must be escaped, too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
