"""Layers that cost most of the accuracy, and divisions near zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.graph.file_parts import part_kind, part_operand
from qtool.core.sqnr import sqnr
from qtool.planning.input_rounding import Rounding
from qtool.planning.plan import Kind, QuantPlan
from qtool.verification.fidelity import LayerSqnr

_LAYERS = 3  # in the result
_SAMPLES = 8  # to measure on
_MEMORY = 256 << 20  # bytes of the values of one run
_RUNS = 128  # samples times layers: each layer is run with all that depends on it
_MIN_SHARE = 0.1  # of the whole error, that a layer makes alone


def costliest_layers(
    graph: FloatGraph, plan: QuantPlan, batch: Batch, reference: FloatGraph
) -> tuple[LayerSqnr, ...]:
    """Return the layers with the lowest output SQNR when only they are quantized, in dB.

    A layer whose error alone is less than `_MIN_SHARE` of the whole error is no cause of it and is
    left out. So there may be none: weights rounded for what their layers compute (GPTQ) are in the
    graph already, and their error is of no point.

    Args:
        graph: graph with its quantization points, and those of what kernels round inside.
        plan: says which points belong to a layer.
        batch: bound to the inputs of the graph; a few of its samples are used.
        reference: the float model, which the whole error is measured against.
    """
    layers: dict[str, set[str]] = {}
    for point in plan:
        layer = plan.root(point.name) if point.kind is Kind.ACTIVATION else point.edges[0].user
        layers.setdefault(layer, set()).add(point.name)
    for module in graph.module.modules():
        if isinstance(module, Rounding):
            layers.setdefault(module.layer, set()).add(module.point)
    run = Executor(graph)
    most = min(_RUNS // max(1, len(layers)), _MEMORY // max(1, run.value_bytes()))
    few = graph.smaller(batch, min(_SAMPLES, max(1, most)))
    quantized = run.output_values(few, run.points)
    floats = [t for t in quantized if t.is_floating_point()]
    limits = _highest_sqnr(reference, few, floats)
    real = run.run(few, frozenset())
    ratios = []
    for layer, points in layers.items():
        new = run.rerun_changed(real, points & run.points, points)
        each = [
            db
            for i, limit in zip(run.outputs, limits, strict=True)
            if i in new and (db := _sqnr(real[i], new[i])) is not None and db <= limit
        ]
        ratios.append((layer, min(each, default=float("inf"))))
    worst = sorted(ratios, key=lambda ratio: ratio[1])[:_LAYERS]
    return tuple(LayerSqnr(name, db) for name, db in worst if db != float("inf"))


def _highest_sqnr(
    reference: FloatGraph, batch: Batch, outputs: Sequence[torch.Tensor]
) -> list[float]:
    """Return for each output the SQNR of an error that is `_MIN_SHARE` of the whole one."""
    executor = Executor(reference)
    values = [t for t in executor.output_values(batch, frozenset()) if t.is_floating_point()]
    whole = [_sqnr(real, coded) for real, coded in zip(values, outputs, strict=True)]
    return [-float("inf") if db is None else db - 10 * math.log10(_MIN_SHARE) for db in whole]


def _sqnr(real: torch.Tensor, other: torch.Tensor) -> float | None:
    return sqnr(real.numpy(force=True), other.numpy(force=True))


# Divisions whose divisor quantization may take through zero.
#
# Near a pole noise is amplified without bound, and whether a sample meets one is chance: an output
# may have 30 dB on one sample and 2 dB on the next. So the divisor is checked, not the output.

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
    if part_kind(node) in _KEPT:  # from a file
        kept = part_operand(node, 1)
        return (kept, _itself) if kept is not None and kept.op.startswith("call") else None
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
