"""Reading of TOML and JSON files."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from qtool.core.errors import FileError, missing
from qtool.core.remedies import OtherFile, Package


def read_toml_or_json(path: Path, what: str) -> Any:
    """Return the parsed content of a .toml or .json file.

    TOML needs Python 3.11 or the package tomli. JSON always works, and one old version of Python is
    not worth a dependency.

    Args:
        path: the file.
        what: the kind of content for messages, such as "recipe".

    Raises:
        FileError: the file cannot be read or parsed, or is neither .toml nor .json.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe may wait for ever, a device never end
            raise FileError(f"{path}: cannot read the {what}: not a regular file")
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise missing(path, FileError, f"{what} file") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot read the {what} ({error})") from error
    if path.suffix == ".json":
        parse: Any = json.loads
    elif path.suffix == ".toml":
        try:
            parse = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads
        except ImportError as error:
            raise FileError(
                f"{path}: TOML needs Python 3.11 or the package tomli",
                Package("tomli"),
                OtherFile(f"write the {what} as JSON"),
            ) from error
    else:
        raise FileError(f"{path}: a {what} must be a .toml or .json file")
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: not {path.suffix.removeprefix('.').upper()} ({error})") from error
