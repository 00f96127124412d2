"""Imports optional packages, and names the extra that installs a missing one."""

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


def require(package: str, purpose: str, kind: type[QtoolError]) -> Any:
    """Import a package.

    Args:
        package: name, with submodules.
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
            f"{purpose} needs {name}, which is not installed: pip install 'qtool[{EXTRAS[name]}]'"
        ) from error
    except Exception as error:
        raise kind(f"{package} cannot be imported: {describe(error)}") from error
