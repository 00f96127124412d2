"""Calibration of a model larger than memory: the float network runs block by block, once.

The statistics of all blocks are those of the whole network, whose plan is then solved at once:
points of different blocks may share a range (a concat and what it joins).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import fx

from qtool import observers
from qtool.blockwise.activation_store import ActivationStore
from qtool.blockwise.block_plan import BlockwiseRun, observed_in
from qtool.blockwise.stored_data import StoredBatch
from qtool.calibration.calibration import Calibration
from qtool.calibration.collect import collect_statistics
from qtool.calibration.solve_parameters import Parameters, solve_parameters
from qtool.core import graph as G
from qtool.core.data.sample_roles import Role
from qtool.core.graph.executor import Executor
from qtool.core.memory import trim_memory
from qtool.core.ops.attention import grouped_attention
from qtool.core.progress import track
from qtool.core.types import ObserverSpec
from qtool.frontends.huggingface.causal_decoder import int8_scales
from qtool.planning.plan import QuantPlan

_LAST = 5  # argument of attention: index of the last token of each text
_SCALES = {1: 10, 2: 11}  # arguments: keys and values, and their scales


def _fitted(run: BlockwiseRun) -> Sequence[StoredBatch]:
    """Return the batches that ranges are learned from."""
    return [b for b in run.batches if b.role is not Role.ESTIMATE] or run.batches


def _store(run: BlockwiseRun, index: int) -> ActivationStore:
    """Return the store of a block's inputs in the float network."""
    return run.checkpoint.activations(0) if index == 0 else run.checkpoint.floats(index)


def _inputs_of(run: BlockwiseRun, index: int) -> Iterator[list[torch.Tensor]]:
    """Yield the inputs of a block."""
    names = [run.blocks[index].tensor_name(n) for n in run.blocks[index].inputs]
    for batch in _fitted(run):
        values, _ = _store(run, index).load(batch.number)
        yield [values[name] for name in names]


def solve_by_blocks(run: BlockwiseRun) -> Parameters:
    """Return the parameters of the plan, and set the scales of int8 caches in the whole graph.

    The float network runs once: a conversion that resumes goes on behind the last block whose
    statistics are stored.

    Raises:
        CalibrationError: there are no values of a tensor.
        DataError: a value is not finite.
        FileError: a file of the checkpoint is damaged, or the disk is full.
    """
    module = run.whole.module
    calibration, scales = _stored(run, calibrate_blocks(run))
    held = {str(n.target): n for n in module.graph.find_nodes(op="get_attr")}
    for name, scale in scales.items():
        G.set_tensor(module, held[name], scale)
    return solve_parameters(module, run.plan, calibration)


def calibrate_blocks(run: BlockwiseRun) -> int:
    """Run the float network through the blocks whose statistics are not stored yet, and store them.

    Returns:
        The number of blocks, from the first, that have to be run: none where the plan has no fixed
        range.

    Raises:
        DataError: a value is not finite.
        FileError: the disk is full.
    """
    plans, end = _observed(run)
    left = range(run.checkpoint.calibrated, end)
    for index in track("calibrating", left, len(left)):
        calibration, scales = _calibrate_block(run, index, plans[index], end)
        shown = replace(calibration, inputs=run.whole.inputs)
        run.checkpoint.save_ranges(index, shown, scales)  # from now on its inputs are not needed
        if index:
            _store(run, index).remove()
        gc.collect()
        trim_memory()
    return end


def _observed(run: BlockwiseRun) -> tuple[list[QuantPlan], int]:
    """Return the points whose ranges each block shows, and the number of blocks up to the last one
    that shows any, or the scales of an int8 cache."""
    plans, shown = list[QuantPlan](), set[str]()
    for block in run.blocks:
        plans.append(observed_in(run.plan, block, shown))
        shown |= {p.name for p in plans[-1].observed()}
    needed = [
        i
        for i, (block, plan) in enumerate(zip(run.blocks, plans, strict=True))
        if plan.observed() or any(map(_scales, block.calls))
    ]
    return plans, max(needed, default=-1) + 1


def _stored(run: BlockwiseRun, end: int) -> tuple[Calibration, Mapping[str, torch.Tensor]]:
    """Return the stored statistics of the first blocks as those of the whole plan, and the scales
    of int8 caches, by attribute."""
    statistics, specs = dict[str, observers.Statistic](), dict[str, ObserverSpec]()
    scales, notes, samples = dict[str, torch.Tensor](), list[str](), 0
    for index in range(end):
        calibration, new = run.checkpoint.load_ranges(index)
        statistics |= calibration.statistics
        specs |= calibration.specs
        scales |= new
        samples = max(samples, calibration.samples)
        notes += [note for note in calibration.notes if note not in notes]
    plan = run.plan
    head = ("", plan.target, plan.observer, plan.recipe, run.whole.inputs)
    return replace(Calibration(*head, samples, specs, statistics), notes=tuple(notes)), scales


def _calibrate_block(
    run: BlockwiseRun, index: int, plan: QuantPlan, end: int
) -> tuple[Calibration, Mapping[str, torch.Tensor]]:
    """Run all batches through a float block; return its statistics and scales of int8 caches.

    Args:
        end: number of blocks to run.
    """
    block = run.blocks[index]
    values, _ = _store(run, index).load(_fitted(run)[0].number)
    example = [values[block.tensor_name(n)] for n in block.inputs]
    graph = block.graph(run.read, example)
    scales = _set_cache_scales(graph, partial(_inputs_of, run, index))
    waiting, needed = iter(_fitted(run)), run.required(index + 1, run.blocks[index + 1 : end])

    def store(outputs: Sequence[torch.Tensor]) -> None:
        batch = next(waiting)
        values, _ = _store(run, index).load(batch.number)
        values |= dict(zip(graph.outputs, outputs, strict=True))
        kept = {name: values[name] for name in needed}
        if index + 1 < end:
            _store(run, index + 1).save(batch.number, kept, kept)

    data = (graph.call_of(tensors) for tensors in _inputs_of(run, index))
    calibration = collect_statistics(graph, plan, (), data, "", results=store)
    assert next(waiting, None) is None
    return calibration, scales


# A model without weights cannot compute them before it is captured, so blocks do.


def _set_cache_scales(
    graph: G.FloatGraph, batches: Callable[[], Iterable[Sequence[torch.Tensor]]]
) -> dict[str, torch.Tensor]:
    """Set the scales of int8 caches in a block, in place, and return them by attribute; none for a
    float cache.

    Those of an attention follow from a run in which the ones before it have theirs, wherever the
    block ends.

    Args:
        graph: the block.
        batches: returns the inputs of the block in the float network.
    """
    values = dict[str, torch.Tensor]()
    for node in G.calls(graph.graph):
        scales = _scales(node)
        if not scales:
            continue
        largest = _largest(
            graph, dict.fromkeys(scales, G.name_of(G.source(node, _LAST))), batches()
        )
        for name, constant in scales.items():
            values[str(constant.target)] = int8_scales(largest[name])
            G.set_tensor(graph.module, constant, values[str(constant.target)])
    return values


def _scales(node: fx.Node) -> dict[str, fx.Node]:
    """Return the names of keys and values of an attention with an int8 cache, and their scales."""
    if node.target is not grouped_attention:
        return {}
    pairs = ((node.args[source], node.args[at]) for source, at in _SCALES.items())
    return {
        G.name_of(new): scale
        for new, scale in pairs
        if isinstance(new, fx.Node) and isinstance(scale, fx.Node)
    }


def _largest(
    graph: G.FloatGraph, lasts: Mapping[str, str], batches: Iterable[Sequence[torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return the largest magnitudes of keys and values by channel.

    Args:
        lasts: name of keys or values -> name of the index of the last token of each text; what is
            behind it is padding.
    """
    run, largest = Executor(graph, single_run=True), dict[str, torch.Tensor]()
    wanted = [*lasts, *lasts.values()]
    for batch in batches:
        values = dict(run.stream(graph.call_of(batch), frozenset(), wanted))
        for name, last in lasts.items():
            new = values[name]  # [batch, tokens, channels]
            real = torch.arange(new.shape[1]) <= values[last][:, None]
            maximum = (new.abs() * real[:, :, None]).amax((0, 1))
            largest[name] = torch.maximum(largest.get(name, maximum), maximum)
    return largest
