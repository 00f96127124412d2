"""Operators that hold a part of a model file as text, which the runtime of the file runs.

A backend defines one for its format and registers it here, so that plans name what it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

_KINDS: dict[Any, Callable[[str], str]] = {}


def register_file_part(operator: Any, kind: Callable[[str], str]) -> None:
    """Add an operator with the arguments (inputs, part).

    Args:
        operator: torch operator.
        kind: takes the text of a part, returns the operators in it: "TopK".
    """
    _KINDS[operator] = kind


def part_kind(node: fx.Node) -> str | None:
    """Return the operators of the part that a node holds; None for any other node."""
    kind = _KINDS.get(node.target) if node.op == "call_function" else None
    return None if kind is None else kind(str(node.args[1]))
