"""Collects calibration statistics of a graph through forward hooks, one batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool import observers
from qtool.calibration.calibration import Calibration
from qtool.calibration.data_warnings import DataWarnings, normalised_inputs
from qtool.calibration.merge import check_ranks, merge_ranks
from qtool.calibration.range_convergence import RangeConvergence
from qtool.calibration.strip_padding import strip_padding
from qtool.core import graph as G
from qtool.core.data import Batch, batches
from qtool.core.data.calibration_samples import CalibrationSamples, DataDigest, content_hash
from qtool.core.data.sample_roles import is_estimate
from qtool.core.errors import DataError, describe
from qtool.core.graph import FloatGraph, torch_ops
from qtool.core.graph.devices import float32_convolutions, prefetch
from qtool.core.graph.finite_outputs import check_outputs
from qtool.core.log import log_warning
from qtool.core.ops import row_of, rows
from qtool.core.process_lock import PROCESS_LOCK
from qtool.core.progress import no_progress
from qtool.core.remedies import DataEdit
from qtool.core.types import Dynamic, Observed, ObserverSpec, Progress
from qtool.distributed import current
from qtool.observers import Histogram, Statistic
from qtool.planning.fake_quantize import insert_points, insert_probes, quant_points
from qtool.planning.plan import Probe, QuantPlan
from qtool.planning.sharing import clamp_bounds

Statistics = Mapping[str, Statistic]
Hook = Callable[[nn.Module, Any, torch.Tensor], None]
Update = Callable[..., None]
BUFFERED = 1 << 16  # elements of an output that wait for one histogram update


@dataclass(frozen=True)
class ObservedModule:
    """A module whose outputs are observed.

    Attributes:
        module: the quantization point or probe.
        observer: what collects its statistic.
        axis: channel axis of the statistic; None for one of the whole tensor.
        by_sample: the first dimension of the outputs is the number of samples.
        non_negative: no output is below zero.
    """

    module: nn.Module
    observer: ObserverSpec
    axis: int | None
    by_sample: bool = False
    non_negative: bool = False


@contextmanager
def observer_hooks(
    modules: Mapping[str, ObservedModule], buffer: OutputBuffer | None = None
) -> Iterator[Statistics]:
    """Observe the outputs of modules while the context is open; it removes its hooks on exit.

    Args:
        modules: statistic name -> module.
        buffer: joins the outputs of a batch that runs in parts.
    """
    statistics: dict[str, Statistic] = {}
    with ExitStack() as hooks:
        for name, observed in modules.items():
            statistics[name] = observers.create(observed.observer, observed.axis)
            hook = _hook(name, statistics[name], observed, buffer or OutputBuffer())
            hooks.enter_context(observed.module.register_forward_hook(hook))
        yield statistics


def modules_to_observe(
    prepared: fx.GraphModule, plan: QuantPlan, probes: Sequence[Probe]
) -> dict[str, ObservedModule]:
    """Return the modules that calibration observes in a graph with quantization points.

    Inserts a module for every probe, in place.
    """
    points = quant_points(prepared)
    probe_modules = insert_probes(prepared, {p.name: p.tensor for p in probes})
    nodes = {G.name_of(n): n for n in prepared.graph.nodes}
    first = _first_size(G.placeholders(prepared.graph))
    modules = {}
    for point in plan.observed():
        assert isinstance(point.spec, Observed)
        by_sample = first is not None and _first_size([nodes[point.tensor]]) == first
        spec = point.spec
        low, _ = clamp_bounds(nodes[point.tensor])
        non_negative = low is not None and low >= 0
        modules[point.name] = ObservedModule(
            points[point.name], spec.observer, spec.axis, by_sample, non_negative
        )
    for probe in probes:
        modules[probe.name] = ObservedModule(probe_modules[probe.name], probe.statistic, probe.axis)
    return modules


def _first_size(nodes: Sequence[fx.Node]) -> str | None:
    """Return the dynamic size that is the first dimension of all nodes (the batch), or None."""
    sizes = {str(G.shape(n)[0]) if G.rank(n) else "" for n in nodes if G.is_tensor(n)}
    size = next(iter(sizes), "")
    return size if len(sizes) == 1 and not size.isdigit() and size else None


class OutputBuffer:
    """Outputs of the parts of one batch, joined into few histogram updates: an update of a small
    tensor costs as much as one of a large tensor.

    Attributes:
        parts: the batch runs in parts; else outputs are not buffered.
        active: outputs are observed at all.
    """

    def __init__(self) -> None:
        self.parts, self.active = False, True
        self._waiting: dict[Update, list[torch.Tensor]] = {}

    def add(self, update: Update, output: torch.Tensor) -> None:
        """Update now; buffer a copy if the batch runs in parts, since memory may be reused."""
        if not self.parts:
            update(output)
            return
        waiting = self._waiting.setdefault(update, [])
        waiting.append(output.clone())
        if sum(x.numel() for x in waiting) >= BUFFERED:
            update(*self._waiting.pop(update))

    def flush(self) -> None:
        """Update with everything that is buffered; call it after the last part."""
        for update, waiting in self._waiting.items():
            update(*waiting)
        self._waiting.clear()


def _hook(name: str, statistic: Statistic, observed: ObservedModule, buffer: OutputBuffer) -> Hook:
    update_statistic: Update = statistic.update
    if buffered := isinstance(statistic, Histogram) and observed.by_sample:
        update_statistic = partial(statistic.update_subsampled, clamped=observed.non_negative)

    def update(*outputs: torch.Tensor) -> None:
        try:
            update_statistic(*outputs)
        except DataError as error:
            raise DataError(f"tensor '{name}': {error.problem}", *error.remedies) from error

    def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        if not buffer.active:
            return
        if buffered:
            buffer.add(update, output.detach())
        else:
            update(output.detach())

    return hook


def collect_statistics(
    graph: FloatGraph,
    plan: QuantPlan,
    probes: Sequence[Probe],
    data: Iterable[Any],
    fingerprint: str,
    progress: Progress = no_progress,
    keep: int = 0,
    results: Callable[[Sequence[torch.Tensor]], None] | None = None,
) -> Calibration:
    """Run the data through a float graph and return its statistics.

    In a distributed session each rank runs its shard, and all ranks return the merged calibration.

    Args:
        graph: the float graph after the passes of the plan's target.
        plan: its observed points get statistics.
        probes: further tensors to observe.
        data: batches.
        fingerprint: fingerprint of the captured model.
        progress: wraps the batches.
        keep: number of samples to store; see `qtool.core.data.calibration_samples`.
        results: called with the outputs for each batch, of a block: its batches are not cut, and
            no ranks without data or with the same data are noted.

    Raises:
        DataError: no data; NaN or Inf; shapes or dtypes that do not fit.
        RanksError: the ranks have different models or plans.
        CalibrationError: see `check_ranks`.
    """
    run = _Run(graph, plan, probes, CalibrationSamples(keep), bool(keep), results)
    with (
        observer_hooks(run.modules, run.buffers[False]) as statistics,
        observer_hooks(run.modules, run.buffers[True]) as estimate_statistics,
        torch.inference_mode(),
        float32_convolutions(graph.device),
    ):
        head = (fingerprint, plan.target, plan.observer, plan.recipe, graph.inputs)
        specs = {name: observed.observer for name, observed in run.modules.items()}
        own = Calibration(*head, 0, specs, statistics, run.kept)
        if keep:
            own = replace(own, estimate_statistics=estimate_statistics)
        ranks, convergence, samples = current(), RangeConvergence(), 0
        check_ranks(ranks, own)
        bound_batches = _bind(graph, progress(batches(data, graph.module)))
        for index, (bound, moved) in enumerate(prefetch(bound_batches, graph.device)):
            ranks.check()
            samples += bound.size
            run.observe(index, bound, moved)
            convergence.record(samples, own)
    own = replace(own, samples=samples, data=run.digest.text())
    own = replace(own, notes=convergence.notes(samples, own))
    calibration = merge_ranks(ranks, own, run.first if results is None else None)
    if not calibration.samples:
        raise DataError("the calibration data is empty", DataEdit("give at least one batch"))
    cautions = run.warnings.warnings(calibration.samples)
    for caution in cautions:
        log_warning(caution)
    return replace(calibration, notes=(*cautions, *calibration.notes))


class _Run:
    """Runs batches through a graph with observed modules, and stores samples.

    Args:
        graph: the float graph.
        plan: its points are inserted, but for those of ranges that each run measures: what is
            observed is float.
        probes: further tensors to observe.
        kept: stores samples.
        split: whether observers and estimate get samples of their own.
        results: called with the outputs of each batch; None: outputs are not wanted.
    """

    def __init__(
        self,
        graph: FloatGraph,
        plan: QuantPlan,
        probes: Sequence[Probe],
        kept: CalibrationSamples,
        split: bool,
        results: Callable[[Sequence[torch.Tensor]], None] | None,
    ) -> None:
        static = tuple(p for p in plan if not isinstance(p.spec, Dynamic))
        prepared = insert_points(graph.module, replace(plan, points=static))
        self.graph, self.kept, self.results = graph, kept, results
        self.prepared = G.on_device(prepared, graph.device)
        self.modules = modules_to_observe(self.prepared, plan, probes)
        use_in_place_operators(self.prepared)
        self.split = split and graph.batches_are_samples
        self.buffers = {held: OutputBuffer() for held in (False, True)}
        self.digest, self.warnings = (
            DataDigest(),
            DataWarnings(graph.inputs, normalised_inputs(graph)),
        )
        self.first = ""  # the hash of the first batch
        self._fewest: int | None = None

    def observe(self, index: int, bound: Batch, on_device: Batch) -> None:
        """Run a batch, in parts without padding.

        Args:
            index: number of the batch.
            bound: the batch, bound to the inputs of the graph, on the host.
            on_device: the same where the graph runs.
        """
        graph, tensors = self.graph, self.graph.tensors_of(bound)
        self.first = self.first or content_hash([t.detach().cpu() for t in tensors])
        self.warnings.add(tensors)
        parts = [list(strip_padding(graph, each)) for each in (bound, on_device)]
        first_row = 0 if len(parts[0]) == 1 else None
        for part, moved in zip(*parts, strict=True):
            whole = () if part.whole is None else graph.tensors_of(part.whole)
            tensors = graph.tensors_of(part)
            hashes = self.kept.update(tensors, self.split, f"batch {index}", first_row, whole)
            self.digest.add(tensors)
            if not self.modules and self.results is None:  # only samples are stored
                continue
            if self.split and self._fewest is None:
                self._fewest = graph.fewest_samples(moved)
            for held, piece in _by_role(graph, moved, hashes, self._fewest):
                for each, buffer in self.buffers.items():
                    buffer.active, buffer.parts = each is held, len(parts[0]) > 1
                self._run(piece, index)
        with _batch_in_errors(index):
            for buffer in self.buffers.values():
                buffer.flush()

    def _run(self, piece: Batch, index: int) -> None:
        with PROCESS_LOCK:
            outputs = _run(self.prepared, piece, index)
            check_outputs(self.graph, piece, outputs, index)
        if self.results is not None:
            self.results(outputs)


def _by_role(
    graph: FloatGraph, batch: Batch, hashes: Sequence[str], fewest: int | None
) -> Iterator[tuple[bool, Batch]]:
    """Yield the samples of a batch by role, with whether it is that of the estimate.

    Args:
        hashes: hashes of the samples; none where no samples are stored.
        fewest: samples that the graph takes; None where a batch may not be cut.
    """
    held = torch.tensor([is_estimate(name) for name in hashes], dtype=torch.bool)
    if fewest is None or held.all() or not held.any():
        yield bool(len(held) and held.all()), batch
        return
    for role in (False, True):
        rows = (held == role).nonzero()[:, 0]
        if fewest > len(rows):  # some run again
            rows = rows.repeat(-(-fewest // len(rows)))[:fewest]
        yield role, graph.samples_of(batch, rows)


def _bind(graph: FloatGraph, data: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the batches as arguments of the graph; refuse NaN and Inf."""
    for index, batch in enumerate(data):
        bound = graph.bind(batch, index)
        bound.check_finite(index)
        yield bound


def _run(prepared: nn.Module, batch: Batch, index: int) -> list[Any]:
    with _batch_in_errors(index):
        try:
            return pytree.tree_leaves(prepared(*batch.args, **batch.kwargs))
        except RuntimeError as error:
            if index == 0 or isinstance(error, torch.OutOfMemoryError):  # captured on this batch
                raise
            raise DataError(
                f"the model does not run on it: {describe(error)}",
                DataEdit("give batches of sizes that the model takes"),
            ) from error


@contextmanager
def _batch_in_errors(index: int) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"batch {index}, {error.problem}", *error.remedies) from error


# Makes calls in place during calibration, where their input has no other reader.
#
# A ReLU or a residual add can overwrite the output of the layer before it. That saves about 10 % of
# the forward pass of a large network, whose activations do not fit the cache.


aten = torch.ops.aten

_ALLOCATING = {  # their results share no memory
    aten.add.Tensor,
    aten.linear.default,
    aten.mul.Tensor,
    torch_ops.conv,
    torch_ops.conv_transpose,
    *(row.in_place for row in rows() if row.in_place is not None),
}


def use_in_place_operators(module: fx.GraphModule) -> None:
    """Replace calls by their in-place form where no value changes; edits the graph.

    Modules between a layer and such a call have to return their input, as points and probes do.
    """
    for node in G.calls(module.graph):
        row = row_of(node)
        if row is not None and row.in_place is not None and _is_reusable(node.args[0], node):
            node.target = row.in_place
    module.recompile()


def _is_reusable(read: object, by: fx.Node) -> bool:
    """Return whether a value is new memory with one reader, of the result's size and dtype."""
    while isinstance(read, fx.Node) and read.op == "call_module" and len(read.users) == 1:
        read = read.args[0]
    return (
        isinstance(read, fx.Node)
        and read.target in _ALLOCATING
        and len(read.users) == 1
        and G.same_sizes(G.shape(read), G.shape(by))
        and G.value(read).dtype == G.value(by).dtype
    )
