"""Block-wise conversion of a model larger than memory, from its folder to its file.

The graph is captured without weights and cut where few activations are alive. Each block is then
converted like a small model (`block_conversion`), on the results of the block before it. Its
weights are memory-mapped, rounded, appended to those of the other blocks and freed.
"""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qtool import observers
from qtool.algorithms.registry import select_block_steps
from qtool.backends.onnx.block_files import join_blocks
from qtool.backends.onnx.file_info import FileInfo
from qtool.backends.onnx.origin import Origin, present_versions
from qtool.backends.onnx.self_test_format import SelfTest, attach
from qtool.backends.onnx.storage import move_into_place
from qtool.backends.onnxruntime.self_test.inputs import SAMPLES
from qtool.backends.onnxruntime.self_test_creation import make_self_test
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.blockwise.block_conversion import BlockwiseRun, convert_block, required_inputs
from qtool.blockwise.checkpoint import BlockRecord, open_checkpoint, stored_identity
from qtool.blockwise.converted_blocks import ConvertedBlocks, changes_of
from qtool.blockwise.memory_plan import BLOCK, LIMIT, OF_SELF_TEST
from qtool.blockwise.model_source import open_source
from qtool.blockwise.stored_data import store_data
from qtool.core import graph as G
from qtool.core.atomic import check_writable
from qtool.core.data import Batch, batches
from qtool.core.graph.cut import cut, weight_bytes
from qtool.core.graph.exclusive import exclusive
from qtool.core.graph.split_layers import split
from qtool.core.option_names import MODEL_SUFFIXES
from qtool.core.process_lock import trim_memory
from qtool.core.progress import track
from qtool.core.versions import own_version
from qtool.distributed import collective, current
from qtool.distributed.data_shard import broadcast_first_batch
from qtool.frontends.captured_model import (
    DEFAULT_OBSERVER,
    DynamicSizes,
    apply_passes,
    example_outputs,
)
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache
from qtool.frontends.onnx import OnnxModule, capture_onnx
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, FOR_TARGETS, run_passes
from qtool.planning import targets
from qtool.planning.recipe import INPUT, Recipe

TOO_LARGE = "it takes more memory than its conversion was to take"
SPLIT = 4
"""Layers larger than this part of a block are split: about ten copies of one are in memory."""


@collective
@exclusive
def convert_blocks(
    folder: Path,
    data: Iterable[Any],
    path: Path,
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
    memory: int = LIMIT,
) -> ConvertedBlocks:
    """Convert a model that does not fit into memory; see `api.stored_model`.

    Args:
        folder, data, path, model, task, attention, cache, block, memory: as there.
        target, observer, recipe, mode, accuracy, recover, dynamic: as for `quantize`.

    Raises:
        CaptureError: the folder does not hold this model, or not all of its weights.
        DataError: the data does not fit the model.
        PlanError: `recover` names a step that needs the whole network.
        FileError: a file cannot be written, or the checkpoint is of another model or data.
        VerificationError: a block does not compute what its plan says.
        RanksError: the ranks have different arguments, or one of them failed.
    """
    ranks = current()
    check_writable(path, folder, suffixes=MODEL_SUFFIXES)
    chosen = Recipe.of(recipe, mode, accuracy, recover)
    _, skipped = select_block_steps(chosen)
    source = open_source(folder, model, task, attention, cache)
    captured, stream, example = _capture(source.model, data, dynamic)
    G.defer_tensors(captured.module, source.read)
    whole = _rewritten(captured, target, check=stored_identity(path) is None)
    names = [G.name_of(n) for n in G.calls(whole.graph)]
    chosen.check_names([*(i.name for i in whole.inputs), *names])
    layers, joints = split(whole, block // SPLIT)
    choices = [target, observer, chosen.digest_json(), own_version(), torch.__version__]
    choices += [task or "", attention, cache]
    identity = {"model": source.fingerprint, "choice": json.dumps(choices)}
    identity |= {"block": str(block), "memory": str(memory)}
    ranks.check_equal("a different model", source.fingerprint)
    ranks.check_equal("different options", json.dumps([*choices, block, memory]))
    with open_checkpoint(path, identity, ranks) as checkpoint:
        cuts = cut(whole, block, joints)
        options = target, observer, chosen, block, memory
        run = BlockwiseRun(whole, source, layers, cuts, checkpoint, *options)
        stored = store_data(whole, stream, checkpoint, partial(required_inputs, run, 0))
        left = range(len(checkpoint.finished), len(run.blocks))
        for index in track("blocks", left, len(left)):
            convert_block(run, index, stored)
            gc.collect()  # graphs are reference cycles that hold the weights of their block
            trim_memory()
            source.release_memory()
        blocks = tuple(checkpoint.finished)
        if not ranks.rank:
            _publish(run, path, example)
            checkpoint.remove()
        ranks.all_gather("")
    holdout = not all(batch.measured for batch in stored)
    outputs, notes = tuple(whole.outputs), _unused_rules(run, blocks)
    if skipped and chosen.accuracy == "best":
        notes += (f"block by block these steps do not run: {', '.join(skipped)}",)
    size, used = source.float_bytes, chosen.mode
    return ConvertedBlocks(path, target, used, blocks, outputs, holdout, size, notes)


def _capture(
    model: nn.Module, data: Iterable[Any], dynamic: DynamicSizes | None
) -> tuple[G.FloatGraph, Iterator[Batch], Batch]:
    """Capture a model without weights; return its graph, and the data and a first batch, which all
    ranks have, as its arguments."""
    stream = (_with_empty_cache(batch, model) for batch in batches(data, model))
    own = next(stream, None)
    if own is not None:
        own.check_finite(0)
    example = first = broadcast_first_batch(current(), own)
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

    return whole, bound(), whole.bind(example)


def _rewritten(captured: G.FloatGraph, target: str, check: bool) -> G.FloatGraph:
    """Return a graph with deferred tensors in the forms of a target.

    Args:
        captured: the graph.
        target: name of the target.
        check: compare the outputs on the example, which reads all tensors twice.
    """
    passes = [*CANONICAL, *(FOR_TARGETS[name] for name in targets.target(target).rewrites)]
    graph = replace(captured, module=G.clone(captured.module))
    if check:
        apply_passes(graph, passes, example_outputs(graph))
    else:
        run_passes(graph.module, passes)
    return graph


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
    rows = (row for block in blocks for row in block.nodes)
    nodes = {(run.layers.get(row.node, row.node), row.op) for row in rows}
    return run.recipe.unused(nodes | {(i.name, INPUT) for i in run.whole.inputs})


def _publish(run: BlockwiseRun, path: Path, example: Batch) -> None:
    """Join the blocks to one model, add its self-test, and move it to its final name.

    Args:
        path: final name.
        example: inputs of the model.
    """
    checkpoint = run.checkpoint
    if checkpoint.moved_data is None:
        _join(run, example)
    move_into_place(checkpoint.whole, path, checkpoint.data, checkpoint.digest)


def _join(run: BlockwiseRun, example: Batch) -> None:
    """Write the whole model with its self-test into the checkpoint."""
    checkpoint = run.checkpoint
    ports = [i.name for i in run.whole.inputs], run.whole.outputs
    nodes = tuple(row for block in checkpoint.finished for row in block.nodes)
    spec = observers.parse(run.observer)
    changes = changes_of(checkpoint.finished)
    origin = Origin(run.source.fingerprint, versions=present_versions())
    info = own_version(), run.target, checkpoint.digest, spec, run.recipe, nodes, changes, origin
    metadata = FileInfo(*info).metadata()
    join_blocks(checkpoint.models, ports, metadata, checkpoint.whole, run.whole.metadata)
    test = SelfTest("", missing=TOO_LARGE)
    if OF_SELF_TEST * sum(map(weight_bytes, G.calls(run.whole.graph))) <= run.memory:
        macs, few = sum(node.macs for node in nodes), run.whole.head(example, SAMPLES)
        test = make_self_test(ExportedFile(checkpoint.whole), few.arrays(), macs)
    attach(checkpoint.whole, test)
