"""The package that a small install leaves out."""

from __future__ import annotations

from importlib.util import find_spec

from qtool.core.errors import InstallError
from qtool.core.remedies import Package
from qtool.core.versions import DISTRIBUTION

TORCH = "torch"
INSTALL = f"pip install '{DISTRIBUTION}[{TORCH}]'"


def has_torch() -> bool:
    """Return whether torch is installed; it is not imported."""
    return find_spec(TORCH) is not None


def torch_error(what: str) -> InstallError:
    """Return the error of work that needs torch where it is not installed.

    Args:
        what: the work, at the begin of a sentence.
    """
    message = f"{what} needs torch, which is not installed"
    return InstallError(message, Package(f"'{DISTRIBUTION}[{TORCH}]'", "run pip install {}"))
