"""A model larger than memory: from its folder to its file, block by block.

The graph is captured without a byte of weight and cut where least is alive. A block is then an
ordinary conversion of a small model: the same passes, plan and export, on what the block before it
gave. Its weights are mapped, rounded, written behind those of the others and let go.
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
"""Bytes of weights in float32 that a block may have."""
SPLIT = 4
"""A layer may have this part of them: of what is worked on at once there are some ten copies."""
SAMPLES = 4
"""Of a block's inputs, that it is verified with."""


@dataclass(frozen=True)
class BlockResult:
    """What was written, block by block.

    files: the model and its data. blocks: see `Done`. notes: of the whole; blocks have their own.
    """

    files: tuple[Path, ...]
    blocks: tuple[BlockRecord, ...]
    notes: tuple[str, ...] = ()

    @property
    def sqnr(self) -> Mapping[str, float | None]:
        """Of the model's outputs, on all data, in dB; None where nothing differs."""
        return self.blocks[-1].sqnr

    def to_json(self) -> dict[str, Any]:
        shown = [{k: v for k, v in asdict(b).items() if k != "nodes"} for b in self.blocks]
        said = {"sqnr": dict(self.sqnr), "notes": list(self.notes)}
        return {"files": list(map(str, self.files)), **said, "blocks": shown}

    def __str__(self) -> str:
        size = formats.size(sum(f.stat().st_size for f in self.files))
        rounded = sum(b.rounded for b in self.blocks)
        blocks = "1 block" if len(self.blocks) == 1 else f"{len(self.blocks)} blocks"
        near = ", ".join(f"{k} {_decibels(v)}" for k, v in self.sqnr.items())
        every = (self.notes, *(b.notes for b in self.blocks))
        notes = [f"note: {note}" for each in every for note in each]
        head = (
            f"{self.files[0]}: {size}, {blocks}, each verified "
            f"in ONNX Runtime; {rounded} layers rounded for their results"
        )
        return "\n".join([head, f"on the data, against float: {near}", *notes])


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
    """Quantizes a model that does not fit into memory, and writes its verified file.

    Ended at any time, by a kill as well, the same call goes on behind the last block that was done,
    to the same bytes. Until it is done its work stands in `<path>.blocks`.

    In a process group of torch.distributed all ranks call it, each with its share of the data, and
    a path that all of them see.

    Args:
        folder: of transformers or timm: config.json, and safetensors in one file or in several. Or
            an ONNX file, whose weights lie beside it as external data.
        model: your own model, made in `qtool.without_weights()`; the folder gives its weights.
        data: batches, as for `quantize`; read again when the work goes on.
        path: of the file; its weights go into `<path>.<digest>.data` beside it.
        task, target, observer, recipe, mode, accuracy, recover, dynamic: as for `quantize`. Of the
            steps of a conversion only `gptq` runs.
        block: bytes of weights in float32 that are held at once. Linear layers and embeddings with
            more than a quarter are split and joined again by a Concat.

    Raises:
        CaptureError: the folder holds no such model, or not its weights. DataError: the data does
        not fit. FileError: something cannot be written, or was begun with another model or data.
        VerificationError: a block does not do what its plan says. RanksError: the ranks do not fit
        each other, or one of them failed.
    """
    folder, path, ranks = Path(folder), Path(path), current()
    check_writable(path, folder)
    chosen = Recipe.of(recipe, mode, accuracy, recover)
    source = open_source(folder, model, task)
    whole, stream = _capture(source.model, data, dynamic)
    asked = [FOR_TARGETS[name] for name in targets.target(target).rewrites]
    run_passes(
        whole.module, [each for each in asked if each.needs_whole_graph]
    )  # a block is too little for them
    names = [G.name_of(n) for n in G.calls(whole.graph)]
    chosen.check_names([*(i.name for i in whole.inputs), *names])
    parts, layers, joints = split(whole, block // SPLIT)
    choices = [target, observer, chosen.digest_json(), block, own_version(), torch.__version__]
    said = {"model": source.fingerprint, "choice": json.dumps(choices)}
    ranks.check_equal("a different model", source.fingerprint)
    ranks.check_equal("different options", json.dumps(choices))
    with open_checkpoint(path, said, ranks) as record:
        cuts = cut(whole, block, joints)
        work = _BlockwiseRun(whole, source, parts, layers, cuts, record, target, observer, chosen)
        sizes = _store_inputs(work, stream)
        for index in track("blocks", range(len(work.blocks)), len(work.blocks)):
            if index >= len(record.done):
                _convert(work, index, sizes)
                gc.collect()  # graphs hold themselves, and the weights of their block
                trim_memory()
                source.release_memory()
        blocks = tuple(record.done)
        if not ranks.rank:
            _publish(work, path)
            record.remove()
        ranks.all_gather("")
    return BlockResult(tuple(model_files(path)), blocks, _unused_rules(work, blocks))


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
        """A stored tensor of the graph."""
        held, name = G.tensor(self.whole.module, node).detach(), str(node.target)
        part = self.parts.get(name)
        if part is None:
            return self.source.read(name, held, None)
        return self.source.read(part.source, held, part.slices)


def _capture(
    model: nn.Module, data: Iterable[Any], dynamic: DynamicSizes | None
) -> tuple[G.FloatGraph, Iterator[Batch]]:
    """The graph of a model without values, and the data as its arguments."""
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


def _store_inputs(work: _BlockwiseRun, data: Iterator[Batch]) -> list[int]:
    """Reads the data, which becomes the values that the first block reads; the samples of each
    batch of all ranks, in turn."""
    record, ranks, own = work.checkpoint, work.checkpoint.ranks, list[tuple[str, int]]()
    names = [i.name for i in work.whole.inputs]
    place = record.own_data if ranks.is_distributed else record.activations(0)
    for index, batch in enumerate(data):
        tensors = work.whole.tensors_of(batch)
        own.append((content_hash(tensors), batch.size))
        if not record.done:
            passing = _needed_tensors(work, 0, index)
            found = {n: t for n, t in zip(names, tensors, strict=True) if n in passing}
            place.save(index, found, found)
    told = [json.loads(text) for text in ranks.all_gather(json.dumps(own))]
    numbers = interleave(
        [[(rank, i) for i in range(len(share))] for rank, share in enumerate(told)]
    )
    if ranks.is_distributed and not record.done:
        for number, (rank, index) in enumerate(numbers):
            if rank == ranks.rank:
                place.move(index, record.activations(0), number)
    every, marks = interleave(told), hashlib.sha256()
    for mark, _ in every:
        marks.update(mark.encode())
    record.check_identity("data", marks.hexdigest()[:32])
    ranks.all_gather("")  # all of it is there
    return [size for _, size in every]


def _needed_tensors(work: _BlockwiseRun, index: int, batch: int = 0) -> list[str]:
    """What has to be at hand of a batch before a block: all that it and later ones read. Where a
    block joins outputs alone, which nobody waits for and are large, the first batch is enough.
    """
    before = {b.tensor_name(n) for b in work.blocks[:index] for n in b.outputs}
    before |= {i.name for i in work.whole.inputs}
    asked = [b for b in work.blocks[index:] if batch == 0 or not b.only_outputs]
    read = [b.tensor_name(n) for b in asked for n in b.inputs]
    return [name for name in dict.fromkeys(read) if name in before]


def _convert(work: _BlockwiseRun, index: int, sizes: Sequence[int]) -> None:
    """One block, up to its record."""
    block, record = work.blocks[index], work.checkpoint
    values = record.activations(index)
    names = [block.tensor_name(n) for n in block.inputs]
    exact, coded = ([side[n] for n in names] for side in values.load(0))
    start, plan = _plan_block(work, block, exact)
    calibration = _calibrate_block(
        work, start, plan, index, 1 if block.only_outputs else len(sizes)
    )
    solved = SOLVE.run(ConversionState.start(start, plan, calibration))
    rounding = GPTQ in select_steps(work.recipe)
    sizes = sizes[:1] if block.only_outputs else sizes
    after = record.activations(index + 1), partial(_needed_tensors, work, index + 1)
    found = run_block(solved, rounding, values, record.scratch, after, sizes)
    done = (
        None
        if record.ranks.rank
        else _write_block(work, _with_rounded_weights(solved, found), found, coded)
    )
    record.add(done)


def _write_block(
    work: _BlockwiseRun,
    converted: ConversionState,
    found: BlockOutcome,
    coded: Sequence[torch.Tensor],
) -> BlockRecord:
    """The next block, verified, behind those that are done. coded: what it reads of a batch."""
    record, index = work.checkpoint, len(work.checkpoint.done)
    name, quantized = work.blocks[index].name, Quantized(converted, _sample(converted.graph, coded))
    model, end = append_weights(quantized.to_onnx(), record.data, record.end)
    message = model.SerializeToString()
    write_atomic(record.model(index), message)
    parity, exactness = quantized.check_file(record.model(index))
    if not (parity.passed and (exactness is None or exactness.passed)):
        why = f"{exactness}; {parity}".replace("\n", "; ")
        raise VerificationError(f"block {index} ({name}) does not compute what was planned ({why})")
    digest = _digest(message, record.data, record.end, end)
    nodes = tuple(asdict(n) for n in quantized.info.nodes)
    near = {k: _sqnr(found, k) for k in found.noise}
    notes = (*quantized.notes, *found.notes)
    return BlockRecord(name, end, digest, near, len(found.weights), notes, nodes)


def _plan_block(
    work: _BlockwiseRun, block: Block, example: Sequence[Any]
) -> tuple[Captured, QuantPlan]:
    graph = block.graph(work.read, example)
    few = _sample(graph, example)
    graph = replace(graph, example=(few.args, dict(few.kwargs)))
    _, outputs = apply_passes(graph, CANONICAL, example_outputs(graph))
    captured = Captured(graph, "", outputs)
    return captured, captured.plan(work.target, work.observer, work.recipe, layers=work.layers)


def _calibrate_block(
    work: _BlockwiseRun, start: Captured, plan: QuantPlan, index: int, count: int
) -> Calibration:
    """What the float network shows of the block's tensors, if anything of them is asked."""
    graph, _ = start.for_target(work.target)
    if not any(plan.observed()):
        spec = observers.parse(work.observer)
        return Calibration("", work.target, spec, work.recipe, graph.inputs, 0, {}, {})
    values, names = work.checkpoint.activations(index), [i.name for i in graph.inputs]
    ranks = work.checkpoint.ranks

    def data() -> Iterator[Batch]:
        for at in range(ranks.rank, count, ranks.size):
            exact, _ = values.load(at)
            yield graph.call_of([exact[n] for n in names])

    return collect_statistics(graph, plan, (), data(), "", check_shards=False)


def _with_rounded_weights(state: ConversionState, found: BlockOutcome) -> ConversionState:
    """The conversion with the weights that the walk found."""
    if not found.weights:
        return state
    module = G.clone(state.graph.module)
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and str(node.target) in found.weights:
            G.set_tensor(module, node, found.weights[str(node.target)])
    rounded = replace(state, graph=replace(state.graph, module=module))
    return rounded.with_change(Change(GPTQ.name, len(found.weights), REASON))


def _sample(graph: G.FloatGraph, tensors: Sequence[torch.Tensor]) -> Batch:
    return graph.head(graph.call_of(tensors), SAMPLES)


def _sqnr(found: BlockOutcome, name: str) -> float | None:
    noise, power = found.noise[name], found.power[name]
    return 10 * log10(max(power, 1e-30) / noise) if noise else None


def _decibels(value: float | None) -> str:
    return "equal" if value is None else f"{value:.1f} dB"


def _unused_rules(work: _BlockwiseRun, blocks: Sequence[BlockRecord]) -> tuple[str, ...]:
    """Rules that fit a name, and selected nothing all the same."""
    rows = (NodeInfo(**row) for done in blocks for row in done.nodes)
    nodes = {(work.layers.get(row.node, row.node), row.op) for row in rows}
    return work.recipe.unused(nodes | {(i.name, INPUT) for i in work.whole.inputs})


def _digest(message: bytes, data: Path, start: int, end: int) -> str:
    found = hashlib.sha256(message)
    with data.open("rb") as file:
        file.seek(start)
        while (left := end - file.tell()) > 0:
            found.update(file.read(min(left, 1 << 24)))
    return found.hexdigest()


def _publish(work: _BlockwiseRun, path: Path) -> None:
    """The blocks as one model, under its name."""
    record = work.checkpoint
    inputs = [i.name for i in work.whole.inputs]
    model = join_models(record.block_models(), inputs, work.whole.outputs)
    nodes = tuple(NodeInfo(**row) for done in record.done for row in done.nodes)
    spec = observers.parse(work.observer)
    rounded = sum(d.rounded for d in record.done)
    changes = (Change(GPTQ.name, rounded, REASON),) if rounded else ()
    made = own_version(), work.target, record.digest, spec, work.recipe, nodes, changes
    untested = SelfTest("", missing="it was written block by block, and is not run whole")
    onnx.helper.set_model_props(model, {**FileInfo(*made).metadata(), **untested.metadata()})
    move_into_place(model, path, record.data, record.digest)
