"""Conversion of one block: its plan, calibration, weights and file, as for a small model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import log10
from pathlib import Path
from typing import Any

import torch
from torch import fx

from qtool import observers
from qtool.algorithms.pipeline import SOLVE, ConversionState
from qtool.algorithms.registry import select_steps
from qtool.algorithms.weight_rounding.rounding import GPTQ, REASON
from qtool.backends.onnx.storage import append_weights
from qtool.blockwise.block_pass import run_block
from qtool.blockwise.block_run import BlockOutcome
from qtool.blockwise.checkpoint import BlockRecord, Checkpoint
from qtool.blockwise.model_source import ModelSource
from qtool.calibration.calibration import Calibration
from qtool.calibration.collect import collect_statistics
from qtool.conversion.quantized import Quantized
from qtool.core import graph as G
from qtool.core.atomic import write_atomic
from qtool.core.data import Batch
from qtool.core.data.calibration_samples import content_hash
from qtool.core.errors import VerificationError
from qtool.core.graph.cut import Block
from qtool.core.graph.split_layers import LayerShard
from qtool.core.types import Change
from qtool.distributed import interleave
from qtool.frontends.captured_model import Captured, apply_passes, example_outputs
from qtool.passes import CANONICAL
from qtool.planning.plan import QuantPlan
from qtool.planning.recipe import Recipe

SAMPLES = 4
"""Samples that each block is verified with."""


@dataclass(frozen=True)
class BlockwiseRun:
    """A block-wise conversion.

    Attributes:
        whole: the graph of the model, without weights.
        source: reads its weights.
        parts: attribute of the graph -> the part of a stored tensor, for layers that are split.
        layers: name of a node -> name of the layer that it is a part of.
        blocks: in order.
        checkpoint: finished blocks, and activations.
    """

    whole: G.FloatGraph
    source: ModelSource
    parts: Mapping[str, LayerShard]
    layers: Mapping[str, str]
    blocks: Sequence[Block]
    checkpoint: Checkpoint
    target: str
    observer: str
    recipe: Recipe

    def read(self, node: fx.Node) -> torch.Tensor:
        """Read a stored tensor of the graph."""
        value, name = G.tensor(self.whole.module, node).detach(), str(node.target)
        part = self.parts.get(name)
        if part is None:
            return self.source.read(name, value, None)
        return self.source.read(part.source, value, part.slices)


def store_inputs(run: BlockwiseRun, data: Iterator[Batch]) -> list[int]:
    """Store the data as inputs of the first block; return all ranks' batch sizes, in order."""
    checkpoint, ranks, own = run.checkpoint, run.checkpoint.ranks, list[tuple[str, int]]()
    names = [i.name for i in run.whole.inputs]
    store = checkpoint.own_data if ranks.is_distributed else checkpoint.activations(0)
    for index, batch in enumerate(data):
        tensors = run.whole.tensors_of(batch)
        own.append((content_hash(tensors), batch.size))
        if not checkpoint.finished:
            needed = _needed_tensors(run, 0, index)
            kept = {n: t for n, t in zip(names, tensors, strict=True) if n in needed}
            store.save(index, kept, kept)
    gathered = [json.loads(text) for text in ranks.all_gather(json.dumps(own))]
    numbers = interleave(
        [[(rank, i) for i in range(len(share))] for rank, share in enumerate(gathered)]
    )
    if ranks.is_distributed and not checkpoint.finished:
        for number, (rank, index) in enumerate(numbers):
            if rank == ranks.rank:
                store.move(index, checkpoint.activations(0), number)
    contents, digest = interleave(gathered), hashlib.sha256()
    for content, _ in contents:
        digest.update(content.encode())
    checkpoint.check_identity("data", digest.hexdigest()[:32])
    ranks.all_gather("")  # a barrier: all data is stored
    return [size for _, size in contents]


def _needed_tensors(run: BlockwiseRun, index: int, batch: int = 0) -> list[str]:
    """Return the tensors of a batch that a block and later ones read.

    A block that only joins outputs, which are large and feed no other block, needs the first batch
    alone.
    """
    before = {b.tensor_name(n) for b in run.blocks[:index] for n in b.outputs}
    before |= {i.name for i in run.whole.inputs}
    later = [b for b in run.blocks[index:] if batch == 0 or not b.only_outputs]
    read = [b.tensor_name(n) for b in later for n in b.inputs]
    return [name for name in dict.fromkeys(read) if name in before]


def convert_block(run: BlockwiseRun, index: int, sizes: Sequence[int]) -> None:
    """Convert one block and add it to the checkpoint."""
    block, checkpoint = run.blocks[index], run.checkpoint
    values = checkpoint.activations(index)
    names = [block.tensor_name(n) for n in block.inputs]
    exact, coded = ([side[n] for n in names] for side in values.load(0))
    captured, plan = _plan_block(run, block, exact)
    calibration = _calibrate_block(
        run, captured, plan, index, 1 if block.only_outputs else len(sizes)
    )
    solved = SOLVE.run(ConversionState.start(captured, plan, calibration))
    rounding = GPTQ in select_steps(run.recipe)
    sizes = sizes[:1] if block.only_outputs else sizes
    after = checkpoint.activations(index + 1), partial(_needed_tensors, run, index + 1)
    outcome = run_block(solved, rounding, values, checkpoint.scratch, after, sizes)
    record = None
    if not checkpoint.ranks.rank:
        record = _write_block(run, _with_rounded_weights(solved, outcome), outcome, coded)
    checkpoint.add(record)


def _write_block(
    run: BlockwiseRun,
    converted: ConversionState,
    outcome: BlockOutcome,
    coded: Sequence[torch.Tensor],
) -> BlockRecord:
    """Verify the next block and write it. coded: its inputs in the quantized network."""
    checkpoint, index = run.checkpoint, len(run.checkpoint.finished)
    name, quantized = run.blocks[index].name, Quantized(converted, _sample(converted.graph, coded))
    model, end = append_weights(quantized.to_onnx(), checkpoint.data, checkpoint.end)
    message = model.SerializeToString()
    write_atomic(checkpoint.model(index), message)
    parity, exactness = quantized.check_file(checkpoint.model(index))
    if not (parity.passed and (exactness is None or exactness.passed)):
        why = f"{exactness}; {parity}".replace("\n", "; ")
        raise VerificationError(f"block {index} ({name}) does not compute what was planned ({why})")
    digest = _digest(message, checkpoint.data, checkpoint.end, end)
    nodes = tuple(asdict(n) for n in quantized.info.nodes)
    sqnr = {k: _sqnr(outcome, k) for k in outcome.noise}
    notes = (*quantized.notes, *outcome.notes)
    return BlockRecord(name, end, digest, sqnr, len(outcome.weights), notes, nodes)


def _plan_block(
    run: BlockwiseRun, block: Block, example: Sequence[Any]
) -> tuple[Captured, QuantPlan]:
    """Return the captured block with its weights, and its plan."""
    graph = block.graph(run.read, example)
    sample = _sample(graph, example)
    graph = replace(graph, example=(sample.args, dict(sample.kwargs)))
    _, outputs = apply_passes(graph, CANONICAL, example_outputs(graph))
    captured = Captured(graph, "", outputs)
    return captured, captured.plan(run.target, run.observer, run.recipe, layers=run.layers)


def _calibrate_block(
    run: BlockwiseRun, captured: Captured, plan: QuantPlan, index: int, count: int
) -> Calibration:
    """Calibrate the block on the float network; empty if its plan has no fixed range."""
    graph, _ = captured.for_target(run.target)
    if not any(plan.observed()):
        spec = observers.parse(run.observer)
        return Calibration("", run.target, spec, run.recipe, graph.inputs, 0, {}, {})
    values, names = run.checkpoint.activations(index), [i.name for i in graph.inputs]
    ranks = run.checkpoint.ranks

    def data() -> Iterator[Batch]:
        for at in range(ranks.rank, count, ranks.size):
            exact, _ = values.load(at)
            yield graph.call_of([exact[n] for n in names])

    return collect_statistics(graph, plan, (), data(), "", check_shards=False)


def _with_rounded_weights(state: ConversionState, outcome: BlockOutcome) -> ConversionState:
    """Return the state with the rounded weights of the block."""
    if not outcome.weights:
        return state
    module = G.clone(state.graph.module)
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and str(node.target) in outcome.weights:
            G.set_tensor(module, node, outcome.weights[str(node.target)])
    rounded = replace(state, graph=replace(state.graph, module=module))
    return rounded.with_change(Change(GPTQ.name, len(outcome.weights), REASON))


def _sample(graph: G.FloatGraph, tensors: Sequence[torch.Tensor]) -> Batch:
    """Return the first samples of a batch."""
    return graph.head(graph.call_of(tensors), SAMPLES)


def _sqnr(outcome: BlockOutcome, name: str) -> float | None:
    """Return the SQNR of a result in dB; None for identical results."""
    noise, power = outcome.noise[name], outcome.power[name]
    return 10 * log10(max(power, 1e-30) / noise) if noise else None


def _digest(message: bytes, data: Path, start: int, end: int) -> str:
    """Hash a block and its weights, the bytes from `start` to `end` of the data file."""
    digest = hashlib.sha256(message)
    with data.open("rb") as file:
        file.seek(start)
        while (left := end - file.tell()) > 0:
            digest.update(file.read(min(left, 1 << 24)))
    return digest.hexdigest()
