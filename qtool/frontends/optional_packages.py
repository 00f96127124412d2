"""Imports optional packages, and says which package to install if one is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qtool.core.errors import QtoolError, describe
from qtool.core.remedies import Package

PACKAGES = {
    "transformers": "transformers",
    "datasets": "datasets",
    "PIL": "pillow",
    "timm": "timm",
    "torchvision": "torchvision",
    "soundfile": "soundfile",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
}
"""Import name -> name of the package to install."""


def require(package: str, purpose: str, kind: type[QtoolError]) -> Any:
    """Import an optional package.

    Args:
        package: import name, with submodules.
        purpose: what needs it, for the message.
        kind: the error to raise.

    Raises:
        `kind`: the package is not installed, or its import fails.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        name = package.partition(".")[0]
        if (error.name or "").partition(".")[0] != name:
            raise kind(f"{name} cannot be imported: {describe(error)}") from error
        raise kind(
            f"{purpose} needs {name}, which is not installed",
            Package(PACKAGES[name], "install the package {}"),
        ) from error
    except Exception as error:
        raise kind(f"{package} cannot be imported: {describe(error)}") from error
