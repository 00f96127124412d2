"""Versions of installed packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "qtool-onnx"
"""What pip installs; on the public index the name `qtool` is a package of other authors."""

_DISTRIBUTIONS = {"qtool": DISTRIBUTION}
"""Import name -> name of the distribution, where they differ."""


def version_of(package: str) -> str:
    """Return the version of a package by its import name; "" if it is not installed."""
    try:
        return version(_DISTRIBUTIONS.get(package, package))
    except PackageNotFoundError:
        return ""


def own_version() -> str:
    """Return the version of the running qtool; "source" if it is not installed."""
    return version_of("qtool") or "source"
