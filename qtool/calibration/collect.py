"""Watching a graph while data runs through it, one batch at a time, by forward hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from qtool import observers
from qtool.calibration.calibration import Calibration
from qtool.calibration.in_place_buffers import use_in_place_operators
from qtool.calibration.merge import check_ranks, merge_ranks
from qtool.calibration.prefetch import prefetch
from qtool.calibration.range_convergence import RangeConvergence
from qtool.calibration.strip_padding import strip_padding
from qtool.core import graph as G
from qtool.core.data import Batch, batches
from qtool.core.data.calibration_samples import CalibrationSamples, content_hash
from qtool.core.errors import DataError
from qtool.core.graph import FloatGraph
from qtool.core.graph.process_lock import PROCESS_LOCK
from qtool.core.types import Dynamic, Observed, ObserverSpec, Progress
from qtool.distributed import current
from qtool.observers import Histogram, Statistic
from qtool.planning.fake_quantize import insert_points, insert_probes, quant_points
from qtool.planning.plan import Probe, QuantPlan
from qtool.planning.sharing import clamp_bounds

Statistics = Mapping[str, Statistic]
Hook = Callable[[nn.Module, Any, torch.Tensor], None]
Update = Callable[..., None]
BUFFERED = 1 << 16  # elements of a tensor that are held for a count


@dataclass(frozen=True)
class ObservedModule:
    """A module whose results are watched, and by which observer's statistic, along which axis.

    samples: whether the first dimension of the results is that of the data's samples.
    clamped: whether no result lies below zero.
    """

    module: nn.Module
    observer: ObserverSpec
    axis: int | None
    by_sample: bool = False
    non_negative: bool = False


@contextmanager
def observer_hooks(
    prepared: fx.GraphModule,
    watched: Mapping[str, ObservedModule],
    gathered: OutputBuffer | None = None,
) -> Iterator[Statistics]:
    """Watches modules of a graph while the context is open: what each is called with.

    gathered: told by the caller of batches that come in parts.

    Every hook is removed on the way out, also after an exception.
    """
    statistics: dict[str, Statistic] = {}
    handles = []
    try:
        for name, watch in watched.items():
            statistics[name] = observers.create(watch.observer, watch.axis)
            hook = _watch(name, statistics[name], watch, gathered or OutputBuffer())
            handles.append(watch.module.register_forward_hook(hook))
        yield statistics
    finally:
        for handle in handles:
            handle.remove()


def modules_to_observe(
    prepared: fx.GraphModule, plan: QuantPlan, probes: Sequence[Probe]
) -> dict[str, ObservedModule]:
    """What calibration watches in a graph with quant points: those, and modules for the probes,
    which are inserted in place."""
    points, beside = quant_points(prepared), insert_probes(prepared, probes)
    nodes = {G.name_of(n): n for n in prepared.graph.nodes}
    first = _first_size(G.placeholders(prepared.graph))
    found = {}
    for point in plan.observed():
        assert isinstance(point.spec, Observed)
        by_sample = first is not None and _first_size([nodes[point.tensor]]) == first
        spec = point.spec
        low, _ = clamp_bounds(nodes[point.tensor])
        clamped = low is not None and low >= 0
        found[point.name] = ObservedModule(
            points[point.name], spec.observer, spec.axis, by_sample, clamped
        )
    for probe in probes:
        found[probe.name] = ObservedModule(beside[probe.name], probe.statistic, probe.axis)
    return found


def _first_size(nodes: Sequence[fx.Node]) -> str | None:
    """The dynamic size that comes first in the values of all nodes: the samples; None without."""
    sizes = {str(G.shape(n)[0]) if G.rank(n) else "" for n in nodes if G.is_tensor(n)}
    size = next(iter(sizes), "")
    return size if len(sizes) == 1 and not size.isdigit() and size else None


class OutputBuffer:
    """Results of the parts of one batch, which histograms take together: a count costs as much for
    any number of values."""

    def __init__(self) -> None:
        self.parts = False
        self._waiting: dict[Update, list[torch.Tensor]] = {}

    def add(self, update: Update, output: torch.Tensor) -> None:
        """At once, unless the batch comes in parts; what is given may be written over then."""
        if not self.parts:
            update(output)
            return
        waiting = self._waiting.setdefault(update, [])
        waiting.append(output.clone())
        if sum(x.numel() for x in waiting) >= BUFFERED:
            update(*self._waiting.pop(update))

    def flush(self) -> None:
        """After the last part."""
        for update, waiting in self._waiting.items():
            update(*waiting)
        self._waiting.clear()


def _watch(name: str, statistic: Statistic, watch: ObservedModule, gathered: OutputBuffer) -> Hook:
    take: Update = statistic.update
    if together := isinstance(statistic, Histogram) and watch.by_sample:
        take = partial(statistic.update_subsampled, clamped=watch.non_negative)

    def update(*outputs: torch.Tensor) -> None:
        try:
            take(*outputs)
        except DataError as error:
            raise DataError(f"tensor '{name}': {error}") from error

    def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        if together:
            gathered.add(update, output.detach())
        else:
            update(output.detach())

    return hook


def collect_statistics(
    graph: FloatGraph,
    plan: QuantPlan,
    probes: Sequence[Probe],
    data: Iterable[Any],
    fingerprint: str,
    progress: Progress = lambda x: x,
    keep: int = 0,
    check_shards: bool = True,
) -> Calibration:
    """Runs the data through a float graph and gathers its statistics, one batch at a time.

    Args:
        graph: in the forms of the plan's target. probes: what is watched beside its points.
        fingerprint: of the model that was captured.
        keep: how many samples are kept with it; see `qtool.core.data.calibration_samples`.
        shares: whether ranks are told what is odd about their shares.

    In a session of several ranks each gives its share, and all get what was seen of all of it.

    Raises:
        DataError: no data; NaN or Inf; shapes or dtypes that do not fit.
        RanksError: the ranks do not fit each other. CalibrationError: see `reduce.agree`.
    """
    static = tuple(p for p in plan if not isinstance(p.spec, Dynamic))  # the float model is seen
    prepared = insert_points(graph.module, replace(plan, points=static))
    chosen = modules_to_observe(prepared, plan, probes)
    use_in_place_operators(prepared)
    kept, split = CalibrationSamples(keep), _first_size(G.placeholders(prepared.graph)) is not None
    specs = {name: watch.observer for name, watch in chosen.items()}
    device = next((t.device for t in prepared.parameters()), torch.device("cpu"))
    gathered = OutputBuffer()
    with observer_hooks(prepared, chosen, gathered) as statistics, torch.inference_mode():
        head = (fingerprint, plan.target, plan.observer, plan.recipe, graph.inputs)
        seen = Calibration(*head, 0, specs, statistics, kept)
        ranks, growth, samples, first = current(), RangeConvergence(specs), 0, ""
        check_ranks(ranks, seen)
        bound_ones = _bound(graph, progress(batches(data, graph.module)))
        for index, (bound, moved) in enumerate(prefetch(bound_ones, device)):
            ranks.check()
            samples += bound.size
            first = first or content_hash([t.detach().cpu() for t in graph.tensors_of(bound)])
            parts = [list(strip_padding(graph, each)) for each in (bound, moved)]
            gathered.parts = len(parts[0]) > 1
            for part, there in zip(*parts, strict=True):
                kept.update(graph.tensors_of(part), split)
                if chosen:  # else samples alone are kept
                    with PROCESS_LOCK:
                        _run(prepared, there, index)
            with _of_batch(index):
                gathered.flush()
            growth.record(samples, statistics)
    seen = replace(seen, samples=samples, notes=growth.notes(samples, statistics))
    found = merge_ranks(ranks, seen, first if check_shards else None)
    if not found.samples:
        raise DataError("the calibration data is empty; give at least one batch")
    return found


def _bound(graph: FloatGraph, data: Iterable[Batch]) -> Iterator[Batch]:
    """The batches as arguments of the graph, with values that can be looked at."""
    for index, batch in enumerate(data):
        bound = graph.bind(batch, index)
        bound.check_finite(index)
        yield bound


def _run(prepared: nn.Module, batch: Batch, index: int) -> None:
    with _of_batch(index):
        prepared(*batch.args, **batch.kwargs)


@contextmanager
def _of_batch(index: int) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"batch {index}, {error}") from error
