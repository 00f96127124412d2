"""Operators that hold a part of a model file as text, which the runtime of the file runs.

A backend defines one for its format and registers it here, so that plans and checks know what it
holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from qtool.core.graph.nodes import hint, name_of, shape, value

TensorSizes = tuple[torch.dtype, tuple[int, ...]]


@dataclass(frozen=True)
class FilePart:
    """What a part holds.

    Attributes:
        kind: its operators: "TopK", "SplitToSequence+ConcatFromSequence".
        operands: position of the tensor that the part reads, for each input of its first operator;
            None for a constant.
        macs: (types and sizes of the inputs, values of those that depend on sizes alone) ->
            multiply-accumulates; None: not known.
    """

    kind: str
    operands: Sequence[int | None]
    macs: Callable[[Sequence[TensorSizes], Sequence[torch.Tensor | None]], int | None]


_READERS: dict[Any, Callable[[str], FilePart]] = {}


def register_file_part(operator: Any, read: Callable[[str], FilePart]) -> None:
    """Add a torch operator with the arguments (inputs, part); `read` takes the text of a part."""
    _READERS[operator] = read


def part_kind(node: fx.Node) -> str | None:
    """Return the operators of the part that a node holds; None for any other node."""
    part = _part(node)
    return None if part is None else part.kind


def nodes_before_parts(graph: fx.Graph) -> frozenset[fx.Node]:
    """Return the nodes whose results a part reads, directly or not: no gradient passes a part."""
    waiting = [n for n in graph.nodes if part_kind(n) is not None]
    before = set[fx.Node]()
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in before:
                before.add(source)
                waiting.append(source)
    return frozenset(before)


def part_operand(node: fx.Node, position: int) -> Any:
    """Return the node that the first operator of a part reads; None for a constant."""
    part = _part(node)
    assert part is not None
    index, inputs = part.operands[position], node.args[0]
    assert isinstance(inputs, list | tuple)
    return None if index is None else inputs[index]


def part_macs(node: fx.Node) -> int | None:
    """Return the multiply-accumulates of a part at the captured sizes; None: not known."""
    part, inputs = _part(node), node.args[0]
    assert part is not None
    assert isinstance(inputs, list | tuple)
    tensors = [n for n in inputs if isinstance(n, fx.Node)]
    sizes = [(value(n).dtype, tuple(map(hint, shape(n)))) for n in tensors]
    return part.macs(sizes, [_from_sizes(n) for n in tensors])


def branch_inputs(node: fx.Node) -> tuple[str, ...]:
    """Return the inputs of the graph on which the branch of an If depends that a part holds; ()
    for any other node, and where floats are among them, unless they are one number."""
    condition = part_operand(node, 0) if part_kind(node) == "If" else None
    names: dict[str, None] = {}
    pending, seen = [condition], set[fx.Node]()
    while pending:
        each = pending.pop()
        if not isinstance(each, fx.Node) or each in seen:
            continue
        seen.add(each)
        if each.op == "placeholder":
            if value(each).is_floating_point() and tuple(shape(each)) not in ((), (1,)):
                return ()
            names[name_of(each)] = None
        pending += each.all_input_nodes
    return tuple(names)


_MOST_STEPS = 64


def _from_sizes(node: fx.Node) -> torch.Tensor | None:
    """Return the value of a whole-number tensor that is computed from sizes alone, else None."""
    if value(node).is_floating_point() or value(node).dim() > 1:
        return None
    steps = 0

    def evaluate(argument: Any) -> Any:
        nonlocal steps
        if isinstance(argument, list | tuple):
            return [evaluate(a) for a in argument]
        if not isinstance(argument, fx.Node):
            return argument
        if isinstance(value(argument), int | torch.SymInt):
            return hint(value(argument))
        steps += 1
        if argument.op != "call_function" or steps > _MOST_STEPS:
            raise LookupError(argument.name)
        args, kwargs = evaluate(argument.args), argument.kwargs.items()
        assert callable(argument.target)
        return argument.target(*args, **{k: evaluate(v) for k, v in kwargs})

    try:
        result = evaluate(node)
    except Exception:  # noqa: BLE001  # it depends on data
        return None
    return result if isinstance(result, torch.Tensor) else None


def _part(node: fx.Node) -> FilePart | None:
    read = _READERS.get(node.target) if node.op == "call_function" else None
    return None if read is None else read(str(node.args[1]))
