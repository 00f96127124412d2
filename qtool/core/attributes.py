"""Attributes of the user's objects, whose own code may run and fail when they are read."""

from __future__ import annotations

from typing import Any


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
