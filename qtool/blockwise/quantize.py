"""Block-wise conversion of a model larger than memory, from its folder to its file.

The graph is captured without weights and cut where few activations are alive. Each block is then
converted like a small model (`block_conversion`), on the results of the block before it. Its
weights are memory-mapped, rounded, appended to those of the other blocks and freed.
"""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from qtool import observers
from qtool.algorithms.pipeline import Scope
from qtool.algorithms.registry import select_block_steps
from qtool.backends.onnx.storage import model_files, move_into_place
from qtool.blockwise.block_conversion import convert_block
from qtool.blockwise.block_plan import BlockwiseRun
from qtool.blockwise.calibrate import solve_by_blocks
from qtool.blockwise.checkpoint import file_digest, open_checkpoint, stored_identity
from qtool.blockwise.converted_blocks import ConvertedBlocks
from qtool.blockwise.memory_plan import StoredModel
from qtool.blockwise.stored_data import store_data
from qtool.blockwise.whole_file import measure_file, write_whole
from qtool.core import graph as G
from qtool.core import number_texts
from qtool.core.atomic import check_writable
from qtool.core.conversion_options import DynamicSizes, QuantizeKeywords, QuantizeOptions
from qtool.core.data import Batch, batches
from qtool.core.errors import CaptureError, PlanError, RanksError
from qtool.core.graph import FloatGraph
from qtool.core.graph.cut import Block, cut, cut_at, weight_bytes
from qtool.core.graph.edit import exclusive
from qtool.core.graph.fingerprint import fingerprint
from qtool.core.graph.split_layers import split
from qtool.core.memory import trim_memory
from qtool.core.option_names import MODEL_SUFFIXES
from qtool.core.progress import track
from qtool.core.remedies import CallEdit, Setup
from qtool.core.types import ObserverSpec
from qtool.core.versions import own_version
from qtool.distributed import current
from qtool.distributed.first_batch import broadcast_first_batch
from qtool.distributed.process_group import find_group
from qtool.frontends.captured_model import check_rewritten, example_outputs
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache
from qtool.frontends.huggingface.meta_init import (
    expand_meta_parameters,
    load_without_weights,
    stored_names,
)
from qtool.frontends.huggingface.safetensors_files import WeightFiles
from qtool.frontends.onnx.onnx_file import capture_onnx, map_onnx
from qtool.frontends.onnx.onnx_module import OnnxModule
from qtool.frontends.own_models import FileNetwork
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, FOR_TARGETS, run_passes
from qtool.planning import targets
from qtool.planning.plan import QuantPlan
from qtool.planning.planner import make_plan
from qtool.planning.recipe import INPUT, Recipe
from qtool.verification.estimate import Estimate

if TYPE_CHECKING:
    from typing_extensions import Unpack

SPLIT = 4
"""Layers larger than this part of a block are split: about ten copies of one are in memory."""


@exclusive
def convert_blocks(
    stored: StoredModel,
    data: Iterable[Any],
    path: Path,
    *,
    task: str | None = None,
    attention: str = "fused",
    cache: str = "float",
    **keywords: Unpack[QuantizeKeywords],
) -> ConvertedBlocks:
    """Convert a model that does not fit into memory; see `api.stored_model`.

    Args:
        stored, data, path, task, attention, cache: as there.
        keywords: as for `quantize`.

    Raises:
        CaptureError: the folder does not hold this model, or not all of its weights.
        DataError: the data is empty, or does not fit the model.
        PlanError: `recover` names a step that needs the whole network.
        FileError: a file cannot be written, or the checkpoint is of another model or data.
        VerificationError: a block does not compute what its plan says.
        RanksError: several ranks call it.
    """
    if find_group() is not None:
        raise RanksError(
            "a model larger than memory is converted by one process", Setup("start one process")
        )
    check_writable(path, stored.path, suffixes=MODEL_SUFFIXES)
    how = QuantizeOptions(**keywords)
    target, observer = how.target or targets.DEFAULT, how.observer
    chosen = Recipe.of(*how.rules)
    select_block_steps(chosen)
    source = open_source(stored.path, stored.module, task, attention, cache)
    choices = [target, observer, chosen.to_json(), own_version(), torch.__version__]
    choices += [task or "", attention, cache]
    captured, stream, example = _capture(source.model, data, how.dynamic)
    code = "" if source.shards is None else fingerprint(captured.module, source.names)
    identity = {"model": source.fingerprint + code, "choice": json.dumps(choices)}
    identity |= {"block": str(stored.block), "memory": str(stored.memory)}
    G.defer_tensors(captured.module, source.read)
    whole = _for_target(captured, target, check=stored_identity(path) is None)
    blocks, plan, layers = _planned(whole, chosen, target, observer, stored.block)
    with open_checkpoint(path, identity) as checkpoint:
        run = BlockwiseRun(whole, plan, blocks, checkpoint)
        needed = run.required(0, blocks)
        run = replace(run, batches=store_data(whole, stream, checkpoint, needed))
        run = replace(run, parameters=solve_by_blocks(run))
        _convert_left(run, source)
        estimate = _write(run, path, source.fingerprint, example, stored.memory)
    notes = _unused_rules(run, layers) + run.parameters.notes + _skipped_steps(chosen)
    samples, again = (whole.cut(example, 1), example), partial(_batches, source.model)
    return ConvertedBlocks(path, run, source.float_bytes, estimate, samples, again, notes)


def _skipped_steps(recipe: Recipe) -> tuple[str, ...]:
    """Return a note on the steps of a recipe that need the whole network."""
    _, skipped = select_block_steps(recipe)
    if not skipped or recipe.accuracy != "best":
        return ()
    return (f"block by block these steps do not run: {', '.join(skipped)}",)


def _write(
    run: BlockwiseRun, path: Path, fingerprint: str, example: Batch, memory: int
) -> Estimate | None:
    """Write the file, measure it and remove the checkpoint; return the errors of the outputs."""
    write_whole(run, path, fingerprint, example, memory)
    estimate = measure_file(run, run.checkpoint.whole, memory)
    move_into_place(run.checkpoint.whole, path)
    run.checkpoint.remove()
    return estimate


def _convert_left(run: BlockwiseRun, source: ModelSource) -> None:
    """Convert the blocks that are not finished."""
    left = range(len(run.checkpoint.finished), len(run.blocks))
    for index in track("blocks", left, len(left)):
        convert_block(run, index)
        gc.collect()  # graphs are reference cycles that hold the weights of their block
        trim_memory()
        source.release_memory()


def _capture(
    model: nn.Module, data: Iterable[Any], dynamic: DynamicSizes | None
) -> tuple[G.FloatGraph, Iterator[Batch], Batch]:
    """Capture a model without weights; return its graph, and the data and a first batch as its
    arguments."""
    stream = _batches(model, data)
    own = first = broadcast_first_batch(current(), next(stream, None))
    own.check_finite(0)
    if isinstance(model, OnnxModule):
        whole = capture_onnx(model, first, dynamic)
    else:
        if isinstance(model, DecoderWithCache) and model.empty_cache is not None:
            first = Batch((), model.capture_example(first.arguments_of(model)))
            dynamic = DYNAMIC if dynamic is None else dynamic
        whole = capture_module(model, first, dynamic, has_weights=False)

    def bound() -> Iterator[Batch]:
        yield whole.bind(own)
        for index, batch in enumerate(stream, 1):
            batch.check_finite(index)
            yield whole.bind(batch, index)

    return whole, bound(), whole.bind(own)


def _for_target(captured: G.FloatGraph, target: str, check: bool) -> G.FloatGraph:
    """Return a graph with deferred tensors in the forms of a target.

    Args:
        captured: the graph.
        target: name of the target.
        check: compare the outputs on the example, which reads all tensors.
    """
    graph = captured
    for passes in (CANONICAL, [FOR_TARGETS[name] for name in targets.target(target).rewrites]):
        graph = replace(graph, module=G.clone(graph.module))
        run_passes(graph.module, passes)
    if check:
        check_rewritten(captured, graph, example_outputs(captured))
    return graph


def _batches(model: nn.Module, data: Iterable[Any]) -> Iterator[Batch]:
    """Return the batches of data for a model, those of texts for a decoder with an empty KV cache
    if they have none."""
    return (_with_empty_cache(batch, model) for batch in batches(data, model))


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


def _unused_rules(run: BlockwiseRun, layers: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes on rules that match a name but selected no node. layers: see `split`."""
    nodes = {(layers.get(d.node, d.node), d.op) for d in run.plan.nodes}
    return run.plan.recipe.unused(nodes | {(i.name, INPUT) for i in run.whole.inputs})


# The parts of a network that steps train one by one: those of the recipe, or the blocks.
#
# Where a block ends is a matter of memory; in which part a layer is trained decides what its
# weights become. So the parts are recorded in the recipe of the file, and a conversion with that
# recipe has them whatever its memory is. A part is converted as one block.


def _planned(
    whole: FloatGraph, recipe: Recipe, target: str, observer: str, block: int
) -> tuple[list[Block], QuantPlan, Mapping[str, str]]:
    """Split layers that are larger than a block, in place, and plan the graph.

    Returns:
        (blocks, plan, name of a new node -> name of its layer).
    """
    names = [G.name_of(n) for n in G.calls(whole.graph)]
    recipe.check_names([*(i.name for i in whole.inputs), *names])
    layers, joints = split(whole, block // SPLIT)
    spec = observers.parse(observer)
    spec = ObserverSpec(spec.name, tuple(observers.options_of(spec).items()))
    blocks, recorded = cut_into_parts(whole, recipe, block, joints)
    plan = make_plan(whole.graph, targets.target(target), spec, recorded, layers=layers)
    return blocks, plan, layers


def cut_into_parts(
    whole: FloatGraph, recipe: Recipe, block: int, alone: Collection[fx.Node]
) -> tuple[list[Block], Recipe]:
    """Cut a graph into blocks; return them, and the recipe with the parts that are trained.

    Args:
        whole: the graph.
        recipe: recipe of the conversion.
        block: bytes of float32 weights of a block.
        alone: calls that are a block each, unless the recipe has parts.

    Raises:
        CaptureError: a size depends on values.
        PlanError: the parts of the recipe are not those of the model, or larger than a block.
    """
    if all(step.scope is not Scope.PART for step in select_block_steps(recipe)[0]):
        return cut(whole, block, alone), recipe
    if not recipe.parts:
        blocks = cut(whole, block, alone)
        return blocks, replace(recipe, parts=tuple(G.name_of(b.calls[0]) for b in blocks))
    try:
        blocks = cut_at(whole, recipe.parts)
    except LookupError as error:
        raise PlanError(
            f"the parts of the recipe begin with '{error.args[0]}', which is not where a part of "
            "this model can begin: the first one begins with its first node, the others follow in "
            "order",
            CallEdit("leave out parts"),
        ) from error
    for part in blocks:
        size = sum(map(weight_bytes, part.calls))
        if size > block and len(part.calls) > 1:
            raise PlanError(
                f"the part {part.name} of the recipe has {number_texts.size(size)} of float32 "
                f"weights, more than a block of {number_texts.size(block)}",
                CallEdit("give more memory"),
                CallEdit("leave out parts"),
            )
    return blocks, recipe


# Sources of models larger than memory: a folder with safetensors, or an ONNX file with external
# data. The graph is built without weights; each weight is read on demand.


@dataclass(frozen=True)
class ModelSource:
    """A model whose weights are not loaded.

    Attributes:
        fingerprint: hash of all bytes of its files.
        float_bytes: size of its weights; of an ONNX file, of the file with them.
        shards: its weight files; None where the weights are mapped in the model.
        names: attribute of the model -> tensor in the shards.
    """

    model: nn.Module
    fingerprint: str
    float_bytes: int
    shards: WeightFiles | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def read(
        self, attribute: str, value: torch.Tensor, slices: tuple[slice, ...] | None
    ) -> torch.Tensor:
        """Read a stored tensor, or a part of it.

        Args:
            attribute: name of a parameter or buffer of the model.
            value: the tensor of that name in the graph.
            slices: the part to read; None: all.

        Raises:
            CaptureError: no file holds its values.
        """
        part = value if slices is None else value[slices]
        if self.shards is None:
            return part.contiguous()
        if attribute in self.names:
            return self.shards.read(self.names[attribute], slices)
        if value.numel() > 1 and not any(value.stride()):
            raise CaptureError(f"no file of {self.shards.folder} holds '{attribute}'")
        return part  # computed by the model

    def release_memory(self) -> None:
        """Release the memory of tensors that were read."""
        if isinstance(self.model, FileNetwork):
            self.model.external.release()


def open_source(
    path: Path, model: nn.Module | None, task: str | None, attention: str, cache: str
) -> ModelSource:
    """Open a model folder or an ONNX file. task, attention, cache: of `load_without_weights`.

    Raises:
        CaptureError: no such model, or weights are missing.
    """
    if path.suffix == ".onnx":
        if model is not None or task is not None:
            raise CaptureError(f"{path} is a whole model; omit model and task")
        mapped = map_onnx(path)
        size = sum(file.stat().st_size for file in model_files(path))
        return ModelSource(mapped, file_digest(*model_files(path))[:32], size)
    shards = WeightFiles(path)
    if model is None:
        empty = load_without_weights(path, task, attention, cache)
    else:
        empty = expand_meta_parameters(model)
    names = stored_names(empty, shards, every=model is None)
    size = sum(4 * prod(shards.shape(name)) for name in set(names.values()))
    return ModelSource(empty, file_digest(*shards.files)[:32], size, shards, names)
