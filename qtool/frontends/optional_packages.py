"""Packages that only some sources need: said in one sentence where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qtool.core.errors import QtoolError, describe

EXTRAS = {
    "transformers": "hf",
    "datasets": "hf",
    "PIL": "vision",
    "timm": "vision",
    "torchvision": "vision",
    "soundfile": "audio",
}
"""Package -> the extra of qtool that installs it."""


def require(package: str, why: str, kind: type[QtoolError]) -> Any:
    """The package, imported.

    Raises:
        `kind`: it is not installed, or does not import.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        name = package.partition(".")[0]
        if (error.name or "").partition(".")[0] != name:
            raise kind(f"{name} cannot be imported: {describe(error)}") from error
        raise kind(
            f"{why} needs {name}, which is not installed: pip install 'qtool[{EXTRAS[name]}]'"
        ) from error
    except Exception as error:
        raise kind(f"{package} cannot be imported: {describe(error)}") from error
