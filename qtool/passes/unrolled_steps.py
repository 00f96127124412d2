"""A layer that is applied to each step of a sequence by itself, and stacked, is applied once.

Keras' `TimeDistributed` becomes that in files: a slice, a product, a sum and an axis for each step,
and a concat of them all. As one layer over the sequence it is one matrix product, one row of the
plan and one node of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops import row_of
from qtool.passes.graph_pass import pattern_pass

aten = torch.ops.aten
_PER_ROW = (aten.linear.default, aten.matmul.default)
_WITH_VECTOR = (aten.add.Tensor, aten.mul.Tensor)


class _Step(NamedTuple):
    """What is computed of a step: the sequence, the number of the step, and the calls in order."""

    source: fx.Node
    number: int
    calls: tuple[fx.Node, ...]


def _steps(node: fx.Node) -> list[_Step] | None:
    """Return the equal steps that a concat stacks, if they are all of one tensor."""
    if node.target is not aten.cat.default:
        return None
    axis = int(G.argument(node, 1, "dim", 0)) % G.rank(node)
    steps = [_step(part, axis) for part in G.sources(node)]
    known = [step for step in steps if step is not None]
    if len(known) != len(steps) or len(steps) < 2 or axis == G.rank(node) - 1:
        return None
    source, _, calls = known[0]
    if [step.number for step in known] != [*range(len(steps))] or not calls:
        return None
    same = all(step.source is source and _equal(step.calls, calls) for step in known)
    return known if same and G.shape(source)[axis] == len(steps) else None


def _step(part: fx.Node, axis: int) -> _Step | None:
    """Return what a part of a concat along `axis` is, if it is computed of one step."""
    if part.target is not aten.unsqueeze.default or G.integer(part, 1) % G.rank(part) != axis:
        return None
    calls, node = list[fx.Node](), G.source(part)
    while _applies_to_rows(node):
        calls.insert(0, node)
        node = G.source(node)
    sliced = _slice(node, axis)
    return None if sliced is None else _Step(*sliced, tuple(calls))


def _slice(node: fx.Node, axis: int) -> tuple[fx.Node, int] | None:
    """Return (sequence, number) if a node is one step of a sequence, without its axis."""
    cut = node
    if node.target in (aten.squeeze.dim, aten.squeeze.dims):
        cut = G.source(node)
        one = cut.target is aten.slice.Tensor and G.rank(node) == G.rank(cut) - 1
        if not one or node.args[1] not in (cut.args[1], [cut.args[1]]):
            return None
    elif node.target is not aten.select.int:
        return None
    source, at, number = G.source(cut), G.integer(cut, 1), cut.args[2]
    if isinstance(number, int) and number >= 0 and at % G.rank(source) == axis:
        return source, number
    return None


def _applies_to_rows(node: fx.Node) -> bool:
    """Return whether a call treats each row of its first input alike, however many there are."""
    if node.op != "call_function" or node.kwargs or len(node.users) != 1:
        return False
    others = [value for value in node.args[1:] if isinstance(value, fx.Node)]
    if not isinstance(node.args[0], fx.Node) or any(o.op != "get_attr" for o in others):
        return False
    rank, row = max(map(G.rank, others), default=0), row_of(node)
    if node.target in _PER_ROW:
        return rank <= 2
    if node.target in _WITH_VECTOR:
        return rank <= 1
    return row is not None and row.flat and not others


def _equal(calls: tuple[fx.Node, ...], others: tuple[fx.Node, ...]) -> bool:
    return len(calls) == len(others) and all(
        a.target is b.target and [*_operands(a)] == [*_operands(b)]
        for a, b in zip(calls, others, strict=True)
    )


def _operands(node: fx.Node) -> Iterator[Any]:
    """Yield the operands but the first, a stored tensor by its name in the module."""
    for value in node.args[1:]:
        yield str(value.target) if isinstance(value, fx.Node) else value


def _join(module: fx.GraphModule, node: fx.Node, steps: list[_Step]) -> None:
    value = steps[0].source
    for call in steps[0].calls:
        value = G.add_call(node, call.target, (value, *call.args[1:]), G.name_of(call), node)
    G.replace(node, value)


unrolled_steps = pattern_pass("unrolled_steps", _steps, _join)
