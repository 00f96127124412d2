"""Block-wise conversion of a model larger than memory, from its folder to its file.

The graph is captured without weights and cut where few activations are alive. Each block is then
converted like a small model (`block_conversion`), on the results of the block before it. Its
weights are memory-mapped, rounded, appended to those of the other blocks and freed.
"""

from __future__ import annotations

import gc
import inspect
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from qtool import observers
from qtool.algorithms.registry import select_block_steps
from qtool.backends.onnx.block_files import UNTESTED, publish_blocks
from qtool.backends.onnx.file_info import FileInfo, NodeInfo
from qtool.backends.onnx.origin import Origin, present_versions
from qtool.backends.onnx.self_test_format import SelfTest
from qtool.backends.onnx.storage import model_files
from qtool.blockwise.block_conversion import BlockwiseRun, convert_block, required_inputs
from qtool.blockwise.checkpoint import BlockRecord, open_checkpoint
from qtool.blockwise.memory_plan import BLOCK
from qtool.blockwise.model_source import open_source
from qtool.blockwise.stored_data import store_data
from qtool.core import formats
from qtool.core import graph as G
from qtool.core.atomic import check_writable
from qtool.core.data import Batch, batches
from qtool.core.graph.cut import cut
from qtool.core.graph.exclusive import exclusive
from qtool.core.graph.split_layers import split
from qtool.core.option_names import MODEL_SUFFIXES
from qtool.core.path_arguments import accepts_paths
from qtool.core.process_lock import trim_memory
from qtool.core.progress import track
from qtool.core.summary import Result, Summary, group_names
from qtool.core.types import Change
from qtool.core.versions import own_version
from qtool.distributed import collective, current
from qtool.distributed.data_shard import broadcast_first_batch
from qtool.frontends.captured_model import DEFAULT_OBSERVER, DynamicSizes
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache
from qtool.frontends.onnx import OnnxModule, capture_onnx
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import FOR_TARGETS, run_passes
from qtool.planning import targets
from qtool.planning.recipe import INPUT, Recipe
from qtool.verification.fidelity import Fidelity, decibels_text
from qtool.verification.output_errors import CALIBRATION, ESTIMATE, Estimate, OutputEstimate

SPLIT = 4
"""Layers larger than this part of a block are split: about ten copies of one are in memory."""


@dataclass(frozen=True)
class BlockResult(Result):
    """The result of a block-wise conversion.

    Attributes:
        files: the model and its weights.
        blocks: records of all blocks, in order.
        outputs: names of the model's outputs.
        holdout: the SQNR is that of held-out samples; otherwise no step learned from the samples,
            or there are too few to hold some out.
        notes: on the whole model, for the user; blocks have their own.
    """

    JSON_PROPERTIES: ClassVar = ("size_bytes", "sqnr", "samples", "estimate")

    files: tuple[Path, ...]
    blocks: tuple[BlockRecord, ...]
    outputs: tuple[str, ...]
    holdout: bool
    notes: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of the model and its weights."""
        return sum(f.stat().st_size for f in self.files)

    @property
    def sqnr(self) -> Mapping[str, float | None]:
        """SQNR of the model's float outputs, in dB; None for identical outputs."""
        known = {name: value for block in self.blocks for name, value in block.sqnr.items()}
        return {name: known[name] for name in self.outputs if name in known}

    @property
    def samples(self) -> int:
        """Number of samples that the SQNR is measured on."""
        own = [b.samples for b in self.blocks if not self.sqnr.keys().isdisjoint(b.sqnr)]
        return min(own, default=0)

    @property
    def estimate(self) -> Estimate:
        """Errors of the outputs, as they are to be expected on new data."""
        known = {name: f for block in self.blocks for name, f in block.estimates.items()}
        outputs = tuple(OutputEstimate(n, *known[n]) for n in self.outputs if n in known)
        kind = ESTIMATE if self.holdout else CALIBRATION
        return Estimate(self.samples, kind, outputs, "the simulation of the blocks")

    def summary(self) -> Summary:
        """Return the result in a few lines."""
        changes = ", ".join(f"{c.step} ({c.count} layers)" for c in changes_of(self.blocks))
        rows = (
            ("size", formats.size(self.size_bytes)),
            Fidelity(self.samples, (), estimate=self.estimate).row(),
            ("blocks", f"{len(self.blocks)}, each verified in ONNX Runtime"),
            ("recovery", changes or "none"),
        )
        counts = Counter(note for b in self.blocks for note in b.notes)
        of_blocks = (f"{n} (in {k} blocks)" if k > 1 else n for n, k in counts.items())
        all_notes = (*self.notes, *of_blocks)
        return Summary(str(self.files[0]), "quantized block by block", rows, all_notes)

    def details(self) -> str:
        """Return the SQNR of each block."""
        rows = [
            (
                b.name,
                str(sum(count for _, count, _ in b.changes)),
                group_names([f"{k} {decibels_text(v)}" for k, v in b.sqnr.items()]),
            )
            for b in self.blocks
        ]
        return formats.table(("block", "changes", "SQNR of its results"), rows, align="lrl")


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
    attention: str = "fused",
    cache: str = "float",
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
        model: your own model, built in `qtool.without_weights()`; the folder holds its weights.
        task: of a transformers model, as for `load_model`. Batches of a decoder with its KV cache
            have an empty one, as those of `load_data` for its model do.
        attention: as for `load_model`.
        cache: "float" or "int8", the KV cache of a decoder.
        target, observer, recipe, mode, accuracy, recover, dynamic: as for `quantize`. Of the
            recovery steps those run that need no more than a block (`Step.runs_by_blocks`).
        block: bytes of float32 weights in memory at once. Linear layers and embeddings with more
            than a quarter of that are split, and joined again by a Concat.

    Raises:
        CaptureError: the folder does not hold this model, or not all of its weights.
        DataError: the data does not fit the model.
        PlanError: `recover` names a step that needs the whole network.
        FileError: a file cannot be written, or the checkpoint is of another model or data.
        VerificationError: a block does not compute what its plan says.
        RanksError: the ranks have different arguments, or one of them failed.
    """
    folder, path, ranks = Path(folder), Path(path), current()
    check_writable(path, folder, suffixes=MODEL_SUFFIXES)
    chosen = Recipe.of(recipe, mode, accuracy, recover)
    _, skipped = select_block_steps(chosen)
    source = open_source(folder, model, task, attention, cache)
    whole, stream = _capture(source.model, data, dynamic)
    passes = [FOR_TARGETS[name] for name in targets.target(target).rewrites]
    run_passes(whole.module, [each for each in passes if each.needs_whole_graph])
    names = [G.name_of(n) for n in G.calls(whole.graph)]
    chosen.check_names([*(i.name for i in whole.inputs), *names])
    parts, layers, joints = split(whole, block // SPLIT)
    choices = [target, observer, chosen.digest_json(), own_version(), torch.__version__]
    choices += [task or "", attention, cache]
    identity = {"model": source.fingerprint, "choice": json.dumps(choices), "block": str(block)}
    ranks.check_equal("a different model", source.fingerprint)
    ranks.check_equal("different options", json.dumps([*choices, block]))
    with open_checkpoint(path, identity, ranks) as checkpoint:
        cuts = cut(whole, block, joints)
        options = target, observer, chosen, block
        run = BlockwiseRun(whole, source, parts, layers, cuts, checkpoint, *options)
        stored = store_data(whole, stream, checkpoint, partial(required_inputs, run, 0))
        left = range(len(checkpoint.finished), len(run.blocks))
        for index in track("blocks", left, len(left)):
            convert_block(run, index, stored)
            gc.collect()  # graphs are reference cycles that hold the weights of their block
            trim_memory()
            source.release_memory()
        blocks = tuple(checkpoint.finished)
        if not ranks.rank:
            _publish(run, path)
            checkpoint.remove()
        ranks.all_gather("")
    holdout = not all(batch.measured for batch in stored)
    outputs, notes = tuple(whole.outputs), _unused_rules(run, blocks)
    if skipped and chosen.accuracy == "best":
        notes += (f"block by block these steps do not run: {', '.join(skipped)}",)
    return BlockResult(tuple(model_files(path)), blocks, outputs, holdout, notes)


def _capture(
    model: nn.Module, data: Iterable[Any], dynamic: DynamicSizes | None
) -> tuple[G.FloatGraph, Iterator[Batch]]:
    """Capture a model without weights; return its graph and the data as its arguments."""
    stream = (_with_empty_cache(batch, model) for batch in batches(data, model))
    own = next(stream, None)
    if own is not None:
        own.check_finite(0)
    first = broadcast_first_batch(current(), own)
    if isinstance(model, OnnxModule):
        whole = capture_onnx(model, first, dynamic)
    else:
        if isinstance(model, DecoderWithCache) and model.empty_cache is not None:
            first = Batch((), model.capture_example(first.arguments_of(model)))
            dynamic = DYNAMIC if dynamic is None else dynamic
        whole = capture_module(model, first, dynamic, has_weights=False)

    def bound() -> Iterator[Batch]:
        if own is not None:
            yield whole.bind(own)
        for index, batch in enumerate(stream, 1):
            batch.check_finite(index)
            yield whole.bind(batch, index)

    return whole, bound()


def _with_empty_cache(batch: Batch, model: nn.Module) -> Batch:
    """Return a batch of texts with an empty KV cache for a decoder, if it has none."""
    if not isinstance(model, DecoderWithCache) or model.empty_cache is None:
        return batch
    names = inspect.signature(model.forward).parameters
    arguments = dict(zip(names, batch.args, strict=False)) | batch.kwargs
    ids, mask = (arguments.get(name) for name in ("input_ids", "attention_mask"))
    if ids is None or "past_key_values" in arguments:
        return batch
    mask = torch.ones_like(ids) if mask is None else mask
    return Batch((), model.with_cached_prefix(ids, mask, 0))


def _unused_rules(run: BlockwiseRun, blocks: Sequence[BlockRecord]) -> tuple[str, ...]:
    """Return notes on rules that match a name but selected no node."""
    rows = (NodeInfo(**row) for block in blocks for row in block.nodes)
    nodes = {(run.layers.get(row.node, row.node), row.op) for row in rows}
    return run.recipe.unused(nodes | {(i.name, INPUT) for i in run.whole.inputs})


def changes_of(blocks: Sequence[BlockRecord]) -> tuple[Change, ...]:
    """Return the changes of the steps, summed over blocks."""
    counts = dict[tuple[str, str], int]()
    for step, count, reason in (change for block in blocks for change in block.changes):
        counts[step, reason] = counts.get((step, reason), 0) + count
    return tuple(Change(step, count, reason) for (step, reason), count in counts.items())


def _publish(run: BlockwiseRun, path: Path) -> None:
    """Join the blocks to one model and write it under its final name."""
    checkpoint = run.checkpoint
    ports = [i.name for i in run.whole.inputs], run.whole.outputs
    nodes = tuple(NodeInfo(**row) for block in checkpoint.finished for row in block.nodes)
    spec = observers.parse(run.observer)
    changes = changes_of(checkpoint.finished)
    origin = Origin(run.source.fingerprint, versions=present_versions())
    info = own_version(), run.target, checkpoint.digest, spec, run.recipe, nodes, changes, origin
    metadata = {**FileInfo(*info).metadata(), **SelfTest("", missing=UNTESTED).metadata()}
    weights, source = (checkpoint.data, checkpoint.digest), run.whole.metadata
    publish_blocks(checkpoint.models, ports, metadata, path, weights, source)
