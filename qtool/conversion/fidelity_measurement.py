"""How close a quantized model's outputs are to those of the float model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.registry import ESTIMATE_SAMPLES
from qtool.backends.export import PlannedFile
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.output_evidence import Evidence
from qtool.core.quant_params import ROUNDED
from qtool.core.random_inputs import is_cache
from qtool.core.types import Array, Dynamic
from qtool.core.value_names import MASK
from qtool.metrics.compared_batches import ComparedBatches
from qtool.metrics.output_agreement import OutputAgreement
from qtool.metrics.output_errors import OutputErrors
from qtool.metrics.output_kind import CLASS
from qtool.observers import Histogram, MinMax
from qtool.planning.input_rounding import insert_input_rounding
from qtool.simulation.costly_layers import costliest_layers, near_zero_divisions
from qtool.simulation.fake_quantized import FakeQuantized
from qtool.simulation.output_evidence import evidence_of_graph, padding_of
from qtool.verification import Fidelity, compare_outputs
from qtool.verification.estimate import (
    BEYOND,
    CALIBRATION,
    ESTIMATE,
    FIRST,
    Estimate,
    InBatches,
    Reach,
    estimate_outputs,
)

FAR = 10.0  # times the median sample: a value is extreme


def measure_fidelity(
    model: FakeQuantized,
    sample: Batch,
    divisions: tuple[str, ...],
    outputs: Sequence[Any] | None = None,
    estimate: Estimate | None = None,
) -> Fidelity:
    """Compare outputs with those of the float model.

    Args:
        model: the fake-quantized model.
        sample: the batch to run.
        divisions: see `find_near_zero_divisions`.
        outputs: outputs for the sample; by default those of fake quantization.
        estimate: errors to be expected on new data; None: those of the batch.
    """
    coded = model.run(sample) if outputs is None else outputs
    real = model.run_float(sample)
    padding, inputs = padding_of(model.graph), sample.arrays()
    real, coded = (padding.strip(inputs, o) for o in (real, coded))
    named = (sample.size, model.graph.outputs)
    fidelity = compare_outputs(*named, real, coded, _evidence(model), estimate)
    if estimate is None:
        own = replace(fidelity.estimate, cached=_cached_tokens(model.graph, inputs))
        fidelity = replace(fidelity, estimate=own)
    fidelity = replace(fidelity, near_zero_divisions=divisions)
    if fidelity.warning is None:
        return fidelity
    rounded, batch = _with_rounding(model), model.to_device(sample)
    costliest = costliest_layers(rounded, model.plan, batch, model.reference)
    return replace(fidelity, costliest=costliest)


def _evidence(model: FakeQuantized) -> dict[str, Evidence]:
    """Return what is known of each output: of the float graph, since steps may change the other."""
    return evidence_of_graph(model.reference, model.plan.recipe.output_kinds)


def find_near_zero_divisions(model: FakeQuantized, sample: Batch) -> tuple[str, ...]:
    """Return the divisions whose divisor comes near zero on a sample."""
    return near_zero_divisions(model.graph_with_points, model.to_device(sample))


@dataclass(frozen=True, eq=False)
class EstimateSamples:
    """Samples that the accuracy on new data is measured on.

    Attributes:
        kind: `estimate.ESTIMATE` or `CALIBRATION`.
        batches: bound to the inputs of the graph.
        origins: where each sample is in the data.
        calibration: other samples, of which the float outputs count alone.
        beyond, reach: see `Estimate`.
    """

    kind: str
    batches: Sequence[Batch]
    origins: Sequence[str] = ()
    calibration: Sequence[Batch] = ()
    beyond: tuple[Reach, ...] = ()
    reach: float = 0.0

    @classmethod
    def of(cls, state: ConversionState, size: int, sample: Batch) -> EstimateSamples:
        """Return the samples that nothing in a model was made of; without those, of calibration.

        Args:
            state: state after the conversion.
            size: samples of a batch.
            sample: batch of the calibration; its whole texts count where no samples were stored.
        """
        batches = state.estimates(size, ESTIMATE_SAMPLES)
        if origins := state.estimate_origins():
            others = state.batches(size, ESTIMATE_SAMPLES, holdout=None)
            return cls(ESTIMATE, batches, origins, others, _beyond(state), _reach(state))
        whole = () if sample.whole is None else (sample.whole,)
        return cls(CALIBRATION, batches or whole)

    def taken_by(self, file: PlannedFile) -> EstimateSamples:
        """Return the samples whose sizes a file takes."""
        fits = [file.takes(batch) for batch in self.batches]
        rows = [fit for fit, b in zip(fits, self.batches, strict=True) for _ in range(b.size)]
        origins = self.origins
        if len(rows) == len(origins):
            origins = [o for o, fit in zip(origins, rows, strict=True) if fit]
        batches = [b for b, fit in zip(self.batches, fits, strict=True) if fit]
        return replace(self, batches=batches, origins=origins)


Ends = tuple[float, float]


def _extents(state: ConversionState) -> Iterator[tuple[str, Ends, Ends]]:
    """Yield each tensor with its (minimum, maximum) in the calibration and in the samples for the
    estimate."""
    assert state.calibration is not None
    for point in state.plan.observed():
        pair = [
            statistics.get(point.name)
            for statistics in (state.calibration.statistics, state.calibration.estimate_statistics)
        ]
        ends = [s.extent() for s in pair if isinstance(s, Histogram | MinMax) and not s.empty]
        if len(ends) == 2 and not ends[0][0].dim():
            calibrated, own = ((float(low), float(high)) for low, high in ends)
            yield point.tensor, calibrated, own


def _beyond(state: ConversionState) -> tuple[Reach, ...]:
    """Return the tensors that the samples for the estimate take out of what was calibrated."""
    reaches = []
    for tensor, (least, most), (low, high) in _extents(state):
        width = max(most, -least)
        over = max(high - most, least - low, 0.0) / width if width else 0.0
        if 1 + over > BEYOND:
            reaches.append(Reach(tensor, 1 + over))
    return tuple(sorted(reaches, key=lambda each: -each.factor))


def _reach(state: ConversionState) -> float:
    """Return how many times those of the estimate the calibrated ranges are, in the median."""
    pairs = [(max(b, -a), max(d, -c)) for _, (a, b), (c, d) in _extents(state)]
    ratios = [calibrated / own for calibrated, own in pairs if own > 0]
    return float(np.median(ratios)) if ratios else 0.0


def measure_estimate(
    model: FakeQuantized, samples: EstimateSamples, file: PlannedFile | None = None
) -> Estimate | None:
    """Return the errors of the outputs on samples; None without samples.

    Args:
        model: the fake-quantized model.
        samples: samples to measure on.
        file: what is measured; None: the simulation, with what kernels round inside.
    """
    run = _simulated(model) if file is None else file.run
    samples = samples if file is None else samples.taken_by(file)
    dynamic = any(isinstance(point.spec, Dynamic) for point in model.plan)
    # the simulation may not take a single sample, and a file of a fixed batch does not
    apart = dynamic and file is not None and model.graph.batches_are_samples
    padding, evidence = padding_of(model.graph), _evidence(model)
    compared = ComparedBatches(model.graph.outputs, evidence)
    batched = ComparedBatches(model.graph.outputs, evidence, 0)
    together, beginnings = list[OutputErrors](), list[OutputErrors]()
    parts, reasons, clipped = [], list[Array](), []
    for batch in samples.batches:
        inputs = batch.arrays()
        real, coded = model.run_float(batch), run(inputs)
        if apart and (rows := _one_by_one(run, inputs, coded, batch.size)):
            whole = padding.strip(inputs, real), padding.strip(inputs, coded)
            together.append(batched.add(*whole, batch.size))
            coded = rows
        pair = padding.strip(inputs, real), padding.strip(inputs, coded)
        parts.append(compared.add(*pair, batch.size))
        beginnings.append(_of_first_tokens(model.graph, inputs, *pair))
        reasons.append(_extremes(inputs, parts[-1].signal.shape[1]))
        clipped.append(_beyond_range(model, inputs, real))
    if not parts:
        return None
    known = samples.kind, samples.origins, _reasons(model.graph, reasons)
    estimate = estimate_outputs(OutputErrors.joined(parts), *known)
    size = max(b.size for b in samples.batches)
    in_batches = None
    if len(together) == len(parts) and size > 1:
        in_batches, size = InBatches(size, _median_db(together, samples.kind)), 1
    return replace(
        estimate,
        agreements=_compare_uses(model, samples, compared),
        beyond=samples.beyond,
        reach=samples.reach,
        place="" if file is None else file.place,
        batch=size if dynamic else 0,
        in_batches=in_batches,
        clipped=_share(clipped),
        cached=_cached_tokens(model.graph, samples.batches[0].arrays()),
        first_db=_median_db([each for each in beginnings if each.outputs], samples.kind),
    )


def _compare_uses(
    model: FakeQuantized, samples: EstimateSamples, compared: ComparedBatches
) -> tuple[OutputAgreement, ...]:
    """Return what outputs agree in. Where few samples are to tell how many classes change, margins
    of those of the calibration count, too."""
    agreements = compared.agreements()
    if not any(each.kind == CLASS and each.expected is not None for each in agreements):
        return agreements
    for batch in samples.calibration:
        real = padding_of(model.graph).strip(batch.arrays(), model.run_float(batch))
        compared.add_float(real, batch.size)
    return compared.agreements()


def _cached_tokens(graph: FloatGraph, inputs: Sequence[Array]) -> int:
    """Return how many tokens of a batch are in its KV cache."""
    sizes = (
        a.shape[2] for i, a in zip(graph.inputs, inputs, strict=True) if is_cache(i) and a.ndim == 4
    )
    return max(sizes, default=0)


def _median_db(parts: Sequence[OutputErrors], kind: str) -> float | None:
    """Return the median error of batches, of the output with the lowest; None of no batch."""
    return estimate_outputs(OutputErrors.joined(parts), kind).median_db if parts else None


def _of_first_tokens(
    graph: FloatGraph, inputs: Sequence[Array], real: Sequence[Array], coded: Sequence[Array]
) -> OutputErrors:
    """Return the errors of a decoder's first `FIRST` tokens in the outputs [samples, tokens, width]
    of whole texts; of no output elsewhere."""
    caches, names = any(map(is_cache, graph.inputs)), [i.name for i in graph.inputs]
    whole = caches and MASK in names and not _cached_tokens(graph, inputs)
    mask = inputs[names.index(MASK)] != 0 if whole else np.zeros((0, 0), bool)
    first = mask & (mask.cumsum(1) <= FIRST)
    own = [k for k, a in enumerate(real) if a.ndim == 3 and a.shape[:2] == mask.shape]
    one, other = ([np.where(first[..., None], side[k], 0) for k in own] for side in (real, coded))
    return OutputErrors.of([graph.outputs[k] for k in own], one, other, len(mask))


def _one_by_one(
    run: Callable[[Sequence[Array]], Sequence[Array]],
    inputs: Sequence[Array],
    whole: Sequence[Array],
    count: int,
) -> list[Array]:
    """Return the outputs of a batch whose samples ran one by one; none where they cannot.

    Samples of a batch that share their scales are not independent.
    """
    if count == 1:
        return list(whole)
    if any(a.ndim == 0 or len(a) != count for a in (*inputs, *whole)):
        return []
    each = [run([a[i : i + 1] for a in inputs]) for i in range(count)]
    columns = [list(column) for column in zip(*each, strict=True)]
    fitting = all(
        a.shape[1:] == w.shape[1:] for c, w in zip(columns, whole, strict=True) for a in c
    )
    return [np.concatenate(column) for column in columns] if fitting else []


def _simulated(model: FakeQuantized) -> Callable[[Sequence[Array]], Sequence[Array]]:
    rounding = replace(model, module=_with_rounding(model).module)

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        return rounding.run(model.graph.call_of(list(map(torch.from_numpy, arrays))))

    return run


def _extremes(inputs: Sequence[Array], count: int) -> Array:
    """Return the largest absolute value of each input in each sample, [inputs, samples]; NaN for
    inputs without a row per sample or with integers."""
    rows = [a.dtype.kind == "f" and a.size > 0 and (count == 1 or len(a) == count) for a in inputs]
    return np.array(
        [
            np.abs(a).reshape(count, -1).max(1) if known else np.full(count, np.nan)
            for a, known in zip(inputs, rows, strict=True)
        ]
    ).reshape(len(inputs), count)


def _reasons(graph: FloatGraph, extremes: Sequence[Array]) -> list[str]:
    """Return what is extreme in each sample, "" where nothing is."""
    largest = np.concatenate(extremes, 1)
    usual = np.median(largest, 1)
    reasons = []
    for values in largest.T:
        ratios = values / np.maximum(usual, np.finfo(np.float32).tiny)
        i = int(np.argmax(np.nan_to_num(ratios))) if len(ratios) else 0
        far = len(ratios) > 0 and ratios[i] > FAR
        name = graph.inputs[i].name if far else ""
        reasons.append(
            f"input '{name}' reaches {values[i]:.3g}, {usual[i]:.3g} in the median sample"
            if far
            else ""
        )
    return reasons


def _beyond_range(
    model: FakeQuantized, inputs: Sequence[Array], outputs: Sequence[Array]
) -> tuple[int, int]:
    """Return how many values of quantized inputs and outputs lie beyond their ranges by more than
    half a step, see `ROUNDED`, and how many values there are."""
    nodes = [*G.placeholders(model.graph.graph), *G.output_nodes(model.graph.graph)]
    ranges = {p.tensor: model.parameters.get(p.name) for p in model.plan.observed()}
    beyond = total = 0
    for node, values in zip(nodes, [*inputs, *outputs], strict=True):
        params = ranges.get(G.name_of(node))
        if params is None or params.axis is not None or values.dtype.kind != "f":
            continue
        scale, zero = float(params.scale), float(params.zero_point)
        low = (params.qtype.qmin - zero - ROUNDED) * scale
        high = (params.qtype.qmax - zero + ROUNDED) * scale
        beyond += int(((values < low) | (values > high)).sum())
        total += values.size
    return beyond, total


def _share(counts: Sequence[tuple[int, int]]) -> float:
    total = sum(all_ for _, all_ in counts)
    return sum(beyond for beyond, _ in counts) / total if total else 0.0


def _with_rounding(model: FakeQuantized) -> G.FloatGraph:
    """Return the graph with its points and with what kernels round inside."""
    module = G.clone(model.module)
    insert_input_rounding(module, model.plan)
    return replace(model.graph, module=module)
