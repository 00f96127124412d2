"""Divisions whose divisor quantization may take through zero.

Near a pole noise is amplified without bound, and whether a sample meets one is chance: an output
may have 30 dB on one sample and 2 dB on the next. So the divisor is checked, not the output.
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
from qtool.core.graph.file_parts import part_kind, part_operand

_SAMPLES = 8  # samples
aten = torch.ops.aten
_DIVISORS: dict[Any, int] = {
    **dict.fromkeys((aten.div.Tensor, aten.div.Tensor_mode, aten.floor_divide.default), 1),
    **dict.fromkeys((aten.remainder.Tensor, aten.fmod.Tensor, aten.remainder.Scalar_Tensor), 1),
    **dict.fromkeys((aten.reciprocal.default, aten.rsqrt.default), 0),
}
_KEPT = ("Div", "Mod")
_TANGENTS = (aten.tan.default, "Tan")  # in torch, and kept from a file

Divisor = Callable[[torch.Tensor], torch.Tensor]


def near_zero_divisions(graph: FloatGraph, batch: Batch) -> tuple[str, ...]:
    """Return the divisions whose divisor has quantization noise and comes close to zero.

    That is, it has values of both signs, or values no larger than their noise.

    Args:
        graph: graph with its quantization points.
        batch: bound to the inputs of the graph; a few of its samples are used.
    """
    nodes = G.calls(graph.module.graph)
    divisions = [(node, *d) for node in nodes if (d := _divisor(node)) is not None]
    if not divisions:
        return ()
    run, few = Executor(graph, single_run=True), graph.smaller(batch, _SAMPLES)
    names = {G.name_of(source) for _, source, _ in divisions}
    real, quantized = (dict(run.stream(few, points, names)) for points in (frozenset(), run.points))
    near_zero = []
    for node, source, divisor in divisions:
        exact, rounded = (values[G.name_of(source)] for values in (real, quantized))
        if G.is_float(source) and _reaches_zero(divisor(exact), divisor(rounded)):
            near_zero.append(G.name_of(node))
    return tuple(near_zero)


def _divisor(node: fx.Node) -> tuple[fx.Node, Divisor] | None:
    """Return the node that a division reads, and the function of it that is the divisor."""
    if part_kind(node) in _KEPT:
        return _kept_divisor(node)
    inputs: Any = node.args[0] if part_kind(node) is not None else node.args
    place = _DIVISORS.get(node.target)
    divisor: Divisor = _itself
    if node.target is aten.pow.Tensor_Scalar and isinstance(node.args[1], int | float):
        place = 0 if node.args[1] < 0 else None
    elif node.target in _TANGENTS or part_kind(node) in _TANGENTS:
        place, divisor = 0, torch.Tensor.cos
    source = None if place is None else inputs[place]
    if not isinstance(source, fx.Node) or not source.op.startswith("call"):
        return None
    return source, divisor


def _kept_divisor(node: fx.Node) -> tuple[fx.Node, Divisor] | None:
    """Return the divisor of a division that is kept from a file, if it is computed."""
    source = part_operand(node, 1)
    return (source, _itself) if source is not None and source.op.startswith("call") else None


def _itself(x: torch.Tensor) -> torch.Tensor:
    return x


def _reaches_zero(real: torch.Tensor, quantized: torch.Tensor) -> bool:
    if real.shape != quantized.shape or not real.numel():
        return False
    noise = (quantized - real).abs()
    if not bool((noise > 0).any()):
        return False
    both = bool((real > 0).any() and (real < 0).any())
    return both or bool(((noise > 0) & (real.abs() <= noise)).any())
