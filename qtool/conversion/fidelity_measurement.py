"""How close a quantized model's outputs are to those of the float model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qtool.algorithms.acceptance import Errors, measure_errors
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.planning.input_rounding import insert_input_rounding
from qtool.verification import Fidelity, compare_outputs, costliest_layers, narrow_inputs
from qtool.verification.fake_quantized import FakeQuantized
from qtool.verification.fidelity import Outputs, holdout_sqnr
from qtool.verification.heavy_tails import heavy_tails
from qtool.verification.near_zero_divisions import near_zero_divisions
from qtool.verification.strip_padding import Padding


def measure_fidelity(
    model: FakeQuantized,
    sample: Batch,
    divisions: tuple[str, ...],
    outputs: Sequence[Any] | None = None,
    holdout: tuple[Outputs, int] | None = None,
) -> Fidelity:
    """Compare outputs with those of the float model.

    Args:
        model: the fake-quantized model.
        sample: the batch to run.
        divisions: see `find_near_zero_divisions`.
        outputs: for the sample; by default those of fake quantization.
        holdout: SQNR of the outputs on held-out samples, and how many samples these are.
    """
    coded = model.run(sample) if outputs is None else outputs
    real = model.run_float(sample)
    padding, inputs = Padding.of_graph(model.graph), sample.arrays()
    pair = (padding.strip(inputs, o) for o in (real, coded))
    fidelity = compare_outputs(sample.size, model.graph.outputs, *pair)
    if holdout is not None:
        fidelity = replace(fidelity, holdout=holdout[0], holdout_samples=holdout[1])
    graph, batch = model.graph_with_points, model.to_device(sample)
    fidelity = replace(
        fidelity,
        narrow_inputs=narrow_inputs(graph, model.plan, model.parameters, batch),
        near_zero_divisions=divisions,
        heavy_tails=heavy_tails(graph, batch),
    )
    if fidelity.warning is None:
        return fidelity
    rounded = _with_rounding(model)
    costliest = costliest_layers(rounded, model.plan, batch, model.reference)
    return replace(fidelity, costliest=costliest)


def find_near_zero_divisions(model: FakeQuantized, sample: Batch) -> tuple[str, ...]:
    """Return the divisions whose divisor comes near zero on a sample."""
    return near_zero_divisions(model.graph_with_points, model.to_device(sample))


def measure_holdout(
    model: FakeQuantized, batches: Sequence[Batch], cache: dict[tuple[str, str], Errors]
) -> Outputs:
    """Return the SQNR of each float output on samples that no step of the conversion used."""
    inputs = [model.to_device(batch) for batch in batches]
    graph = model.graph
    (errors,) = measure_errors(model.reference.module, [_with_rounding(model)], inputs, cache)
    nodes = G.output_nodes(graph.graph)
    names = [n for n, node in zip(graph.outputs, nodes, strict=True) if G.is_float(node)]
    return holdout_sqnr(names, [(e.signal.sum(1), e.noise.sum(1)) for e in errors])


def _with_rounding(model: FakeQuantized) -> G.FloatGraph:
    """Return the graph with its points and with what kernels round inside."""
    module = G.clone(model.module)
    insert_input_rounding(module, model.plan)
    return replace(model.graph, module=module)
