"""Block-wise conversion of a model larger than memory, from its folder to its file.

The graph is captured without weights and cut where few activations are alive. Each block is then
converted like a small model, with the same passes, plan and export, on the results of the block
before it. Its weights are memory-mapped, rounded, appended to those of the other blocks and freed.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import log10
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import fx, nn

from qtool import observers
from qtool.algorithms.pipeline import SOLVE, ConversionState
from qtool.algorithms.registry import select_steps
from qtool.algorithms.weight_rounding.rounding import GPTQ, REASON
from qtool.backends.onnx.file_info import FileInfo, NodeInfo, own_version
from qtool.backends.onnx.join_models import join_models
from qtool.backends.onnx.self_test_format import SelfTest
from qtool.backends.onnx.storage import append_weights, model_files, move_into_place
from qtool.blockwise.block_pass import BlockOutcome, run_block
from qtool.blockwise.checkpoint import BlockRecord, Checkpoint, open_checkpoint
from qtool.blockwise.model_source import ModelSource, open_source
from qtool.calibration.calibration import Calibration
from qtool.calibration.collect import collect_statistics
from qtool.conversion.quantized import Quantized
from qtool.core import formats
from qtool.core import graph as G
from qtool.core.atomic import check_writable, write_atomic
from qtool.core.data import Batch, batches
from qtool.core.data.calibration_samples import content_hash
from qtool.core.errors import DataError, VerificationError
from qtool.core.graph.cut import Block, cut
from qtool.core.graph.process_lock import exclusive, trim_memory
from qtool.core.graph.split_layers import LayerShard, split
from qtool.core.path_arguments import accepts_paths
from qtool.core.progress import track
from qtool.core.types import Change
from qtool.distributed import collective, current, interleave
from qtool.distributed.first_batch import broadcast_first_batch
from qtool.frontends.captured_model import (
    DEFAULT_OBSERVER,
    Captured,
    DynamicSizes,
    apply_passes,
    example_outputs,
)
from qtool.frontends.onnx import OnnxModule, capture_onnx
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, FOR_TARGETS, run_passes
from qtool.planning import targets
from qtool.planning.plan import QuantPlan
from qtool.planning.recipe import INPUT, Recipe

BLOCK = 1 << 28
"""Default size of a block: bytes of its weights in float32."""
SPLIT = 4
"""Layers larger than this part of a block are split: about ten copies of one are in memory."""
SAMPLES = 4
"""Samples that each block is verified with."""


@dataclass(frozen=True)
class BlockResult:
    """The result of a block-wise conversion.

    Attributes:
        files: the model and its weights.
        blocks: see `BlockRecord`.
        notes: for the whole model; blocks have their own.
    """

    files: tuple[Path, ...]
    blocks: tuple[BlockRecord, ...]
    notes: tuple[str, ...] = ()

    @property
    def sqnr(self) -> Mapping[str, float | None]:
        """SQNR of the model's outputs on all data, in dB; None for identical outputs."""
        return self.blocks[-1].sqnr

    def to_json(self) -> dict[str, Any]:
        shown = [{k: v for k, v in asdict(b).items() if k != "nodes"} for b in self.blocks]
        summary = {"sqnr": dict(self.sqnr), "notes": list(self.notes)}
        return {"files": list(map(str, self.files)), **summary, "blocks": shown}

    def __str__(self) -> str:
        size = formats.size(sum(f.stat().st_size for f in self.files))
        rounded = sum(b.rounded for b in self.blocks)
        blocks = "1 block" if len(self.blocks) == 1 else f"{len(self.blocks)} blocks"
        sqnr = ", ".join(f"{k} {_decibels(v)}" for k, v in self.sqnr.items())
        all_notes = (self.notes, *(b.notes for b in self.blocks))
        notes = [f"note: {note}" for each in all_notes for note in each]
        head = (
            f"{self.files[0]}: {size}, {blocks}, each verified "
            f"in ONNX Runtime; {rounded} layers rounded by GPTQ"
        )
        return "\n".join([head, f"SQNR against the float model, on all data: {sqnr}", *notes])


@accepts_paths("folder", "path")
@collective
@exclusive
def quantize_by_blocks(
    folder: str | Path,
    data: Iterable[Any],
    path: str | Path,
    *,
    model: nn.Module | None = None,
    task: str | None = None,
    target: str = targets.DEFAULT,
    observer: str = DEFAULT_OBSERVER,
    recipe: Any = None,
    mode: str | None = None,
    accuracy: str | None = None,
    recover: Iterable[str] | None = None,
    dynamic: DynamicSizes | None = None,
    block: int = BLOCK,
) -> BlockResult:
    """Quantize a model that does not fit into memory, and write its verified file.

    If the process ends early, even by a kill, the same call resumes after the last finished block
    and writes the same bytes. Until then its checkpoint is in `<path>.blocks`.

    In a process group of torch.distributed all ranks call it, each with its share of the data and a
    path that all of them can access.

    Args:
        folder: a folder of transformers or timm with config.json and one or more safetensors files,
            or an ONNX file with its weights as external data.
        data: batches, as for `quantize`; read again on resuming.
        path: of the file; its weights are written to `<path>.<digest>.data` next to it.
        model: your own model, made in `qtool.without_weights()`; the folder holds its weights.
        task, target, observer, recipe, mode, accuracy, recover, dynamic: as for `quantize`. Of the
            recovery steps only `gptq` runs.
        block: bytes of float32 weights in memory at once. Linear layers and embeddings with more
            than a quarter of that are split, and joined again by a Concat.

    Raises:
        CaptureError: the folder does not hold this model, or not all of its weights.
        DataError: the data does not fit the model.
        FileError: a file cannot be written, or the checkpoint is of another model or data.
        VerificationError: a block does not compute what its plan says.
        RanksError: the ranks have different arguments, or one of them failed.
    """
    folder, path, ranks = Path(folder), Path(path), current()
    check_writable(path, folder)
    chosen = Recipe.of(recipe, mode, accuracy, recover)
    source = open_source(folder, model, task)
    whole, stream = _capture(source.model, data, dynamic)
    passes = [FOR_TARGETS[name] for name in targets.target(target).rewrites]
    run_passes(whole.module, [each for each in passes if each.needs_whole_graph])
    names = [G.name_of(n) for n in G.calls(whole.graph)]
    chosen.check_names([*(i.name for i in whole.inputs), *names])
    parts, layers, joints = split(whole, block // SPLIT)
    choices = [target, observer, chosen.digest_json(), block, own_version(), torch.__version__]
    identity = {"model": source.fingerprint, "choice": json.dumps(choices)}
    ranks.check_equal("a different model", source.fingerprint)
    ranks.check_equal("different options", json.dumps(choices))
    with open_checkpoint(path, identity, ranks) as checkpoint:
        cuts = cut(whole, block, joints)
        run = _BlockwiseRun(
            whole, source, parts, layers, cuts, checkpoint, target, observer, chosen
        )
        sizes = _store_inputs(run, stream)
        for index in track("blocks", range(len(run.blocks)), len(run.blocks)):
            if index >= len(checkpoint.finished):
                _convert(run, index, sizes)
                gc.collect()  # graphs are reference cycles that hold the weights of their block
                trim_memory()
                source.release_memory()
        blocks = tuple(checkpoint.finished)
        if not ranks.rank:
            _publish(run, path)
            checkpoint.remove()
        ranks.all_gather("")
    return BlockResult(tuple(model_files(path)), blocks, _unused_rules(run, blocks))


@dataclass(frozen=True)
class _BlockwiseRun:
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
        held, name = G.tensor(self.whole.module, node).detach(), str(node.target)
        part = self.parts.get(name)
        if part is None:
            return self.source.read(name, held, None)
        return self.source.read(part.source, held, part.slices)


def _capture(
    model: nn.Module, data: Iterable[Any], dynamic: DynamicSizes | None
) -> tuple[G.FloatGraph, Iterator[Batch]]:
    """Capture a model without weights; return its graph and the data as its arguments."""
    stream = batches(data, model)
    own = next(stream, None)
    if own is not None:
        own.check_finite(0)
    first = broadcast_first_batch(current(), own)
    if first is None:
        raise DataError("the calibration data is empty; give at least one batch")
    if isinstance(model, OnnxModule):
        whole = capture_onnx(model, first, dynamic)
    else:
        whole = capture_module(model, first, dynamic, has_weights=False)

    def bound() -> Iterator[Batch]:
        if own is not None:
            yield whole.bind(own)
        for index, batch in enumerate(stream, 1):
            batch.check_finite(index)
            yield whole.bind(batch, index)

    return whole, bound()


def _store_inputs(run: _BlockwiseRun, data: Iterator[Batch]) -> list[int]:
    """Store the data as inputs of the first block; return all ranks' batch sizes, in order."""
    checkpoint, ranks, own = run.checkpoint, run.checkpoint.ranks, list[tuple[str, int]]()
    names = [i.name for i in run.whole.inputs]
    place = checkpoint.own_data if ranks.is_distributed else checkpoint.activations(0)
    for index, batch in enumerate(data):
        tensors = run.whole.tensors_of(batch)
        own.append((content_hash(tensors), batch.size))
        if not checkpoint.finished:
            needed = _needed_tensors(run, 0, index)
            kept = {n: t for n, t in zip(names, tensors, strict=True) if n in needed}
            place.save(index, kept, kept)
    gathered = [json.loads(text) for text in ranks.all_gather(json.dumps(own))]
    numbers = interleave(
        [[(rank, i) for i in range(len(share))] for rank, share in enumerate(gathered)]
    )
    if ranks.is_distributed and not checkpoint.finished:
        for number, (rank, index) in enumerate(numbers):
            if rank == ranks.rank:
                place.move(index, checkpoint.activations(0), number)
    contents, digest = interleave(gathered), hashlib.sha256()
    for content, _ in contents:
        digest.update(content.encode())
    checkpoint.check_identity("data", digest.hexdigest()[:32])
    ranks.all_gather("")  # a barrier: all data is stored
    return [size for _, size in contents]


def _needed_tensors(run: _BlockwiseRun, index: int, batch: int = 0) -> list[str]:
    """Return the tensors of a batch that a block and later ones read.

    A block that only joins outputs, which are large and feed no other block, needs the first batch
    alone.
    """
    before = {b.tensor_name(n) for b in run.blocks[:index] for n in b.outputs}
    before |= {i.name for i in run.whole.inputs}
    later = [b for b in run.blocks[index:] if batch == 0 or not b.only_outputs]
    read = [b.tensor_name(n) for b in later for n in b.inputs]
    return [name for name in dict.fromkeys(read) if name in before]


def _convert(run: _BlockwiseRun, index: int, sizes: Sequence[int]) -> None:
    """Convert one block and add it to the checkpoint."""
    block, checkpoint = run.blocks[index], run.checkpoint
    values = checkpoint.activations(index)
    names = [block.tensor_name(n) for n in block.inputs]
    exact, coded = ([side[n] for n in names] for side in values.load(0))
    start, plan = _plan_block(run, block, exact)
    calibration = _calibrate_block(run, start, plan, index, 1 if block.only_outputs else len(sizes))
    solved = SOLVE.run(ConversionState.start(start, plan, calibration))
    rounding = GPTQ in select_steps(run.recipe)
    sizes = sizes[:1] if block.only_outputs else sizes
    after = checkpoint.activations(index + 1), partial(_needed_tensors, run, index + 1)
    outcome = run_block(solved, rounding, values, checkpoint.scratch, after, sizes)
    done = (
        None
        if checkpoint.ranks.rank
        else _write_block(run, _with_rounded_weights(solved, outcome), outcome, coded)
    )
    checkpoint.add(done)


def _write_block(
    run: _BlockwiseRun,
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
    run: _BlockwiseRun, block: Block, example: Sequence[Any]
) -> tuple[Captured, QuantPlan]:
    graph = block.graph(run.read, example)
    few = _sample(graph, example)
    graph = replace(graph, example=(few.args, dict(few.kwargs)))
    _, outputs = apply_passes(graph, CANONICAL, example_outputs(graph))
    captured = Captured(graph, "", outputs)
    return captured, captured.plan(run.target, run.observer, run.recipe, layers=run.layers)


def _calibrate_block(
    run: _BlockwiseRun, start: Captured, plan: QuantPlan, index: int, count: int
) -> Calibration:
    """Calibrate the block on the float network; empty if its plan has no fixed range."""
    graph, _ = start.for_target(run.target)
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
    return graph.head(graph.call_of(tensors), SAMPLES)


def _sqnr(outcome: BlockOutcome, name: str) -> float | None:
    noise, power = outcome.noise[name], outcome.power[name]
    return 10 * log10(max(power, 1e-30) / noise) if noise else None


def _decibels(value: float | None) -> str:
    return "equal" if value is None else f"{value:.1f} dB"


def _unused_rules(run: _BlockwiseRun, blocks: Sequence[BlockRecord]) -> tuple[str, ...]:
    """Return notes on rules that match a name but selected no node."""
    rows = (NodeInfo(**row) for done in blocks for row in done.nodes)
    nodes = {(run.layers.get(row.node, row.node), row.op) for row in rows}
    return run.recipe.unused(nodes | {(i.name, INPUT) for i in run.whole.inputs})


def _digest(message: bytes, data: Path, start: int, end: int) -> str:
    digest = hashlib.sha256(message)
    with data.open("rb") as file:
        file.seek(start)
        while (left := end - file.tell()) > 0:
            digest.update(file.read(min(left, 1 << 24)))
    return digest.hexdigest()


def _publish(run: _BlockwiseRun, path: Path) -> None:
    """Join the blocks to one model and write it under its final name."""
    checkpoint = run.checkpoint
    inputs = [i.name for i in run.whole.inputs]
    model = join_models(checkpoint.block_models(), inputs, run.whole.outputs)
    nodes = tuple(NodeInfo(**row) for block in checkpoint.finished for row in block.nodes)
    spec = observers.parse(run.observer)
    rounded = sum(b.rounded for b in checkpoint.finished)
    changes = (Change(GPTQ.name, rounded, REASON),) if rounded else ()
    made = own_version(), run.target, checkpoint.digest, spec, run.recipe, nodes, changes
    untested = SelfTest("", missing="the file was written block by block and never run as a whole")
    onnx.helper.set_model_props(model, {**FileInfo(*made).metadata(), **untested.metadata()})
    move_into_place(model, path, checkpoint.data, checkpoint.digest)
