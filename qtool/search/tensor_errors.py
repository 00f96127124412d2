"""Error of the outputs when only one tensor is quantized, from one pass over some samples.

The float values of every tensor are computed once per chunk of samples. With one point switched on,
only the part of the network after it is computed again: half of it for an average tensor.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from qtool.conversion.quantized import Quantized
from qtool.core.data import Batch
from qtool.core.graph.executor import Executor
from qtool.core.progress import track
from qtool.core.store import Store
from qtool.core.types import Array
from qtool.evaluation.measure.layer_facts import signal_and_noise
from qtool.search.cost_model import Item, point_items

SECONDS = 120.0
"""Time limit, after which the samples so far are used; at least one chunk is run."""


def point_errors(
    models: Sequence[Quantized],
    wanted: Sequence[Item],
    chunks: Sequence[Batch],
    store: Store,
) -> dict[Item, float]:
    """Return the noise-to-signal ratio of the outputs with each of these points alone.

    Args:
        models: quantized models; an item is measured in the first that has it, and left out if
            none has it.
        chunks: samples as the graph takes them, few at a time: all values of a chunk are held.
        store: for the sums; an interrupted pass resumes after the last complete chunk.
    """
    model_of: dict[Item, int] = {}
    for number, model in enumerate(models):
        for item in sorted(point_items(model.plan) & set(wanted)):
            model_of.setdefault(item, number)
    items = list(model_of)
    sums, done = np.zeros((len(items), 2)), 0
    if (stored := store.load("errors")) is not None:
        sums, done = stored["sums"], int(stored["done"])
    executors = [Executor(replace(m.graph, module=m.module)) for m in models]
    start = time.monotonic()
    for number, chunk in enumerate(track("errors of single tensors", chunks, len(chunks))):
        if number < done or (done and time.monotonic() - start > SECONDS):
            continue
        for which, executor in enumerate(executors):
            own = {i: item for i, item in enumerate(items) if model_of[item] == which}
            sums += _signal_noise_sums(executor, chunk, own, len(items))
        done = number + 1
        store.save("errors", {"sums": sums, "done": np.array(done)})
    return {
        item: float(noise / signal) if signal else 0.0
        for item, (signal, noise) in zip(items, sums, strict=True)
    }


def _signal_noise_sums(
    executor: Executor, chunk: Batch, own: Mapping[int, Item], count: int
) -> Array:
    sums = np.zeros((count, 2))
    if not own:
        return sums
    real = executor.run(chunk, frozenset())
    for i, (point, _) in own.items():
        only = executor.rerun_changed(real, {point}, {point})
        for output in executor.outputs:
            after = only[output] if output in only else real[output]
            sums[i] += signal_and_noise(real[output], after)
    return sums
