"""Layers that cost most of the accuracy, and concats that waste codes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.sqnr import sqnr
from qtool.planning.input_rounding import Rounding
from qtool.planning.plan import Execution, Kind, QuantPlan
from qtool.simulation.fake_quantized import FakeQuantized
from qtool.verification.fidelity import LayerSqnr, NarrowInput

_LAYERS = 3  # in the result
_SAMPLES = 8  # to measure on
_MEMORY = 256 << 20  # bytes of the values of one run
_RUNS = 128  # samples times layers: each layer is run with all that depends on it
_MIN_SHARE = 0.1  # of the whole error, that a layer makes alone
_MIN_CODES = 16  # of 256, that an input of a concat should use


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


def narrow_inputs(model: FakeQuantized, batch: Batch) -> tuple[NarrowInput, ...]:
    """Return the inputs of integer concats that use few codes of the result.

    Args:
        model: the fake-quantized model.
        batch: bound to its inputs, on its device; a few of its samples are used.

    Returns:
        The narrowest first.
    """
    nodes, params = model.plan.nodes, model.parameters
    concats = {d.node for d in nodes if d.op == "concat" and d.execution is Execution.INTEGER}
    if not concats:
        return ()
    graph = model.graph_with_points
    run, few = Executor(graph), graph.smaller(batch, _SAMPLES)
    reads = {name: dict.fromkeys(run.calls[run.indices[name]].reads) for name in concats}
    names = {i: name for name, i in run.indices.items()}
    wanted = {names[i] for each in reads.values() for i in each}
    values, narrow = dict(run.stream(few, frozenset(), wanted)), []
    for name, inputs in reads.items():
        scale = params[name].scale if name in params else None
        for i in inputs:
            value = values[names[i]]
            if scale is None or not value.numel() or not value.is_floating_point():
                continue
            codes = int((value.max() - value.min()).cpu() / scale) + 1
            if 1 < codes < _MIN_CODES or (codes == 1 and bool(value.max() > value.min())):
                narrow.append(NarrowInput(name, run.name_of(i), codes))
    return tuple(sorted(narrow, key=lambda each: each[2]))
