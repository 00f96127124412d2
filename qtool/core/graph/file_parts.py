"""Operators that hold a part of a model file as text, which the runtime of the file runs.

A backend defines one for its format and registers it here, so that plans and checks know what it
holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx


@dataclass(frozen=True)
class FilePart:
    """What a part holds.

    Attributes:
        kind: its operators: "TopK", "SplitToSequence+ConcatFromSequence".
        operands: for each input of its first operator, the position of the tensor that the part
            reads for it; None for a constant.
    """

    kind: str
    operands: Sequence[int | None]


_READERS: dict[Any, Callable[[str], FilePart]] = {}


def register_file_part(operator: Any, read: Callable[[str], FilePart]) -> None:
    """Add a torch operator with the arguments (inputs, part); `read` takes the text of a part."""
    _READERS[operator] = read


def part_kind(node: fx.Node) -> str | None:
    """Return the operators of the part that a node holds; None for any other node."""
    part = _part(node)
    return None if part is None else part.kind


def part_operand(node: fx.Node, position: int) -> Any:
    """Return the node that the first operator of a part reads; None for a constant."""
    part = _part(node)
    assert part is not None
    index, inputs = part.operands[position], node.args[0]
    assert isinstance(inputs, list | tuple)
    return None if index is None else inputs[index]


def _part(node: fx.Node) -> FilePart | None:
    read = _READERS.get(node.target) if node.op == "call_function" else None
    return None if read is None else read(str(node.args[1]))
