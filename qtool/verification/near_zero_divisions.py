"""Divisions by what quantization may take through zero.

Beside a pole noise is amplified without bound, and whether a sample meets one is chance: an output
may keep 30 dB on it and 2 dB on the next. So it is looked at where the division is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.graph.onnx_subgraph import subgraph_kind, subgraph_of

_SAMPLES = 8  # samples
aten = torch.ops.aten
_DIVISORS: dict[Any, int] = {
    **dict.fromkeys((aten.div.Tensor, aten.div.Tensor_mode, aten.floor_divide.default), 1),
    **dict.fromkeys((aten.remainder.Tensor, aten.fmod.Tensor, aten.remainder.Scalar_Tensor), 1),
    **dict.fromkeys((aten.reciprocal.default, aten.rsqrt.default), 0),
}
_KEPT = ("Div", "Mod")
_TANGENTS = (aten.tan.default, "Tan")  # of torch, and kept as it is in a file

Divisor = Callable[[torch.Tensor], torch.Tensor]


def near_zero_divisions(graph: FloatGraph, batch: Batch) -> tuple[str, ...]:
    """The divisions whose divisor is quantized, or made of what is, and has values of both signs or
    values no larger than their noise.

    Args:
        graph: with its points. batch: bound to its inputs; a few samples of it are used.
    """
    made = [(node, *d) for node in G.calls(graph.module.graph) if (d := _divisor(node)) is not None]
    if not made:
        return ()
    run, few = Executor(graph, single_run=True), graph.smaller(batch, _SAMPLES)
    wanted = {G.name_of(source) for _, source, _ in made}
    real, coded = (dict(run.stream(few, points, wanted)) for points in (frozenset(), run.points))
    found = []
    for node, source, divisor in made:
        exact, rounded = (values[G.name_of(source)] for values in (real, coded))
        if G.is_float(source) and _meets_zero(divisor(exact), divisor(rounded)):
            found.append(G.name_of(node))
    return tuple(found)


def _divisor(node: fx.Node) -> tuple[fx.Node, Divisor] | None:
    """What a node divides by, as a function of what is computed in the graph."""
    if subgraph_kind(node) in _KEPT:
        return _kept_divisor(node)
    inputs: Any = node.args[0] if subgraph_kind(node) is not None else node.args
    place = _DIVISORS.get(node.target)
    divisor: Divisor = _itself
    if node.target is aten.pow.Tensor_Scalar and isinstance(node.args[1], int | float):
        place = 0 if node.args[1] < 0 else None
    elif node.target in _TANGENTS or subgraph_kind(node) in _TANGENTS:
        place, divisor = 0, torch.Tensor.cos
    found = None if place is None else inputs[place]
    if not isinstance(found, fx.Node) or not found.op.startswith("call"):
        return None
    return found, divisor


def _kept_divisor(node: fx.Node) -> tuple[fx.Node, Divisor] | None:
    """The second input of a node that is kept, where it is computed."""
    part = subgraph_of(str(node.args[1]))
    (each,) = part.model.graph.node
    given: Any = dict(zip(part.inputs, node.args[0], strict=True))  # type: ignore[arg-type]  # nodes
    found = given.get(each.input[1])
    return (found, _itself) if found is not None and found.op.startswith("call") else None


def _itself(x: torch.Tensor) -> torch.Tensor:
    return x


def _meets_zero(real: torch.Tensor, coded: torch.Tensor) -> bool:
    if real.shape != coded.shape or not real.numel():
        return False
    noise = (coded - real).abs()
    if not bool((noise > 0).any()):
        return False
    both = bool((real > 0).any() and (real < 0).any())
    return both or bool(((noise > 0) & (real.abs() <= noise)).any())
