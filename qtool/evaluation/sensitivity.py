"""Layer sensitivity: the errors of all layers from one sweep over the data.

For each chunk of samples the float and the quantized values of every tensor are computed once. The
error of a layer, of the outputs when only it is quantized, and of the outputs when only it is in
float, then need only the part of the network after it: half a network for an average layer. So
layers take turns over the chunks, as many as the budget allows, and each error is compared with
that of the whole quantized network on the same samples. A layer in float has its weights from
before they were rounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from qtool.conversion.quantized import Quantized
from qtool.conversion.trained_weights import unrounded_executor
from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.data import Batch
from qtool.core.errors import DataError
from qtool.core.graph.executor import Executor
from qtool.core.graph.node_calls import Values
from qtool.core.progress import no_progress
from qtool.core.remedies import DataEdit
from qtool.core.sqnr import decibels
from qtool.core.types import Array, Progress
from qtool.evaluation.layer_facts import (
    BINS,
    Layer,
    count_saturated,
    histogram_facts,
    layers_of,
    signal_and_noise,
    weight_histogram,
)
from qtool.evaluation.measure.layer_errors import LayerError, Sensitivity
from qtool.evaluation.options import ReportOptions
from qtool.observers.histogram import Histogram
from qtool.planning.fake_quantize import quant_points
from qtool.planning.plan import Kind

CHUNK = 32
MEMORY = 256 << 20
NOISE_FLOOR = 1e-12

# what is summed for each layer, as [signal, noise] pairs
SUMS = ("alone", "accumulated", "only", "left", "left_all")


@dataclass(frozen=True)
class _ChunkSchedule:
    """Layer i is measured on chunk c if (i + c) is a multiple of `period`."""

    chunks: tuple[Batch, ...]
    period: int
    evaluations: float

    def turns(self, chunk: int, layers: int) -> list[int]:
        return [i for i in range(layers) if (i + chunk) % self.period == 0]


def measure_sensitivity(
    quantized: Quantized,
    data: Sequence[Batch],
    *,
    budget: float = ReportOptions.budget,
    progress: Progress = no_progress,
) -> Sensitivity:
    """Measure every layer of a quantized model.

    Args:
        data: batches as the model takes them.
        budget: cost of the sweep in runs of the float model over the same data; the float and the
            quantized run take 2 of them, or slightly more.

    Raises:
        DataError: no data.
        VerificationError: the weights from before rounding cannot be made again.
    """
    bound = [quantized.graph.bind(b, i) for i, b in enumerate(data)]
    if not bound:
        raise DataError(
            "there is no data to measure the layers with", DataEdit("give at least one batch")
        )
    replay, layers = unrounded_executor(quantized), layers_of(quantized)
    every = frozenset().union(*(layer.points for layer in layers))
    schedule = _schedule(quantized, replay, layers, every, bound, budget)
    sums = _Sums(layers)
    for number, chunk in enumerate(progress(schedule.chunks)):
        turns = schedule.turns(number, len(layers))
        _measure(sums, replay, quantized, every, chunk, turns)
    return _sensitivity(quantized, sums, schedule)


def _schedule(
    quantized: Quantized,
    replay: Executor,
    layers: Sequence[Layer],
    every: Set[str],
    data: Sequence[Batch],
    budget: float,
) -> _ChunkSchedule:
    whole = replay.cost()
    both = 2.0 * whole + (replay.cost(every) - whole)  # float and quantized run
    tails = 2.0 * sum(replay.cost(layer.points) for layer in layers)
    period = min(max(1, math.ceil(tails / max(budget * whole - both, 1.0))), len(layers))
    total = sum(b.size for b in data)
    dynamic = all(i.shape and isinstance(i.shape[0], str) for i in quantized.graph.inputs)
    chunks = list(data)
    if dynamic:
        limit = MEMORY // max(1, _bytes(replay, data[0], every))
        size = max(1, min(CHUNK, limit, total // period))
        chunks = [c for b in data for c in split_batch(b, size)]
    period = min(period, len(chunks))
    return _ChunkSchedule(tuple(chunks), period, (both + tails / period) / whole)


def _bytes(replay: Executor, batch: Batch, every: Set[str]) -> int:
    """Return the bytes of the values of one sample in three runs: two are kept, one is running."""
    values = replay.run(split_batch(batch, 1)[0], every)
    kept = [v for i, v in enumerate(values) if i in replay.calls and isinstance(v, torch.Tensor)]
    return 3 * sum(v.numel() * v.element_size() for v in kept)


def split_batch(batch: Batch, size: int) -> list[Batch]:
    """Split a batch into parts of at most `size` samples, of nearly equal size.

    Tensors in lists and dicts, such as those of a KV cache, are split as well.
    """
    count = -(-batch.size // size)
    ends = [batch.size * i // count for i in range(count + 1)]

    def piece(start: int, stop: int) -> Batch:
        def cut(x: Any) -> Any:
            return x[start:stop] if isinstance(x, torch.Tensor) and x.dim() else x

        return Batch(*pytree.tree_map(cut, (batch.args, batch.kwargs)))

    return [piece(start, stop) for start, stop in itertools.pairwise(ends)]


class _Sums:
    """Running sums of a sweep, and histograms of the layers' outputs."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.pairs = {name: np.zeros((len(layers), 2)) for name in SUMS}
        self.counts = np.zeros((len(layers), 3), np.int64)  # samples, clipped, elements
        self.output = np.zeros(2)
        self.logs = np.zeros(len(layers))  # of only / whole error, summed over samples
        self.histograms = [Histogram(None, bins=BINS) for _ in layers]


def _measure(
    sums: _Sums,
    replay: Executor,
    quantized: Quantized,
    every: Set[str],
    chunk: Batch,
    turns: Sequence[int],
) -> None:
    float_run = replay.run(chunk, frozenset())
    quantized_run = replay.run(chunk, every)
    whole = _output_error(replay, float_run, quantized_run)
    sums.output += whole
    least = NOISE_FLOOR * (whole[0] or 1.0) / chunk.size  # so that the logarithm is finite
    for i in turns:
        layer = sums.layers[i]
        only = replay.rerun_changed(float_run, layer.points, layer.points)
        left = replay.rerun_changed(quantized_run, layer.points, every - layer.points)
        before, after = (
            _tensor(replay, layer, float_run),
            _tensor(replay, layer, quantized_run),
        )
        sums.pairs["accumulated"][i] += signal_and_noise(before, after)
        sums.pairs["alone"][i] += signal_and_noise(before, _tensor(replay, layer, float_run, only))
        sums.pairs["only"][i] += _output_error(replay, float_run, float_run, only)
        sums.pairs["left"][i] += _output_error(replay, float_run, quantized_run, left)
        shares = (_noises(replay, float_run, float_run, only) + least) / (
            _noises(replay, float_run, quantized_run) + least
        )
        sums.logs[i] += chunk.size * float(np.log(shares).mean())
        sums.pairs["left_all"][i] += whole
        sums.histograms[i].update(before)
        params = quantized.parameters.get(layer.output or "")
        clipped = 0 if params is None else count_saturated(before, params)
        sums.counts[i] += (chunk.size, clipped, before.numel())


def _tensor(
    replay: Executor, layer: Layer, values: Values, new: dict[int, Any] | None = None
) -> torch.Tensor:
    """Return the layer's output, after its quantization point if it has one.

    That of a recurrent layer is its first result, the hidden states.
    """
    number = replay.indices.get(value_names.quant_point(layer.tensor), replay.indices[layer.tensor])
    result = new[number] if new and number in new else values[number]
    output: torch.Tensor = result[0] if isinstance(result, list | tuple) else result
    return output


def _output_error(
    replay: Executor, real: Values, values: Values, new: dict[int, Any] | None = None
) -> Array:
    total = np.zeros(2)
    for i in replay.outputs:
        total += signal_and_noise(real[i], new[i] if new and i in new else values[i])
    return total


def _noises(
    replay: Executor, real: Values, values: Values, new: dict[int, Any] | None = None
) -> Array:
    """Return [samples] squared error of the outputs."""
    total: Any = 0.0
    for i in replay.outputs:
        error = real[i] - (new[i] if new and i in new else values[i])
        total = total + error.reshape(len(error) if error.dim() else 1, -1).double().square().sum(1)
    return np.atleast_1d(np.asarray(total, np.float64))


def _sensitivity(quantized: Quantized, sums: _Sums, schedule: _ChunkSchedule) -> Sensitivity:
    points = quant_points(quantized.module)
    weights = _weights(quantized)
    layers = []
    for i, layer in enumerate(sums.layers):
        pairs = {name: sums.pairs[name][i] for name in SUMS}
        db = {name: decibels(*pair) for name, pair in pairs.items()}
        before, after = db["left_all"], db["left"]
        samples, clipped, elements = (int(n) for n in sums.counts[i])
        share = clipped / max(1, elements)
        point = points.get(layer.weight or "")
        weight = weights.get(layer.weight or "")
        layers.append(
            LayerError(
                layer.name,
                layer.op,
                layer.tensor,
                layer.macs,
                db["alone"],
                db["accumulated"],
                db["only"],
                math.exp(sums.logs[i] / samples) if samples and pairs["only"][1] > 0 else 0.0,
                after,
                None if before is None or after is None else after - before,
                samples,
                histogram_facts(
                    sums.histograms[i], quantized.parameters.get(layer.output or ""), share
                ),
                None
                if point is None or point.params is None or weight is None
                else weight_histogram(weight, point.params),
            )
        )
    total = sum(c.size for c in schedule.chunks)
    return Sensitivity(total, decibels(*sums.output), schedule.evaluations, tuple(layers))


def _weights(quantized: Quantized) -> dict[str, torch.Tensor]:
    nodes = {G.name_of(n): n for n in quantized.module.graph.nodes}
    return {
        p.name: G.tensor(quantized.module, nodes[p.edges[0].source]).detach()
        for p in quantized.plan
        if p.kind is Kind.WEIGHT
    }
