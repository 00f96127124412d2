"""Imports optional packages, and says which package to install if one is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qtool.core.errors import QtoolError, describe
from qtool.core.remedies import Package
from qtool.core.versions import version_of

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
            raise kind(f"{name} cannot be imported: {describe_import(error)}") from error
        raise kind(
            f"{purpose} needs {name}, which is not installed",
            Package(PACKAGES[name], "install the package {}"),
        ) from error
    except Exception as error:
        raise kind(f"{package} cannot be imported: {describe_import(error)}") from error


def describe_import(error: BaseException) -> str:
    """Return an error of an import in one line, with what to do if that is known."""
    return torchvision_mismatch(error) or describe(error)


def torchvision_mismatch(error: BaseException) -> str:
    """Return what to do where an error, or one that caused it, is that of a torchvision that was
    built for another torch; else ""."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    text = next((t for t in map(describe, causes) if "torchvision::" in t), None)
    if text is None:
        return ""
    return (
        f"the installed torchvision {version_of('torchvision')} was built for another torch than "
        f"{version_of('torch')} ({text}); install both from one index, in one command"
    )
