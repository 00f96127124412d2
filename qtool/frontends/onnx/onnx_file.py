"""Captures a float ONNX file as a float graph, and compares it with ONNX Runtime.

Inputs, outputs, weights and nodes have the names of the file; its dynamic dimensions are dynamic,
its fixed ones fixed. Nodes that depend only on constants are folded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx.external_data_helper import load_external_data_for_model

from qtool.backends.onnx.initializers import check_weight_files, expand_sparse, notes_on_inputs
from qtool.backends.onnx.loops import DeadlineError
from qtool.backends.onnx.origin import read_source_metadata
from qtool.backends.onnx.storage import model_files
from qtool.backends.onnx.subgraph import onnx_part, tensor_of
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.data.fixed_inputs import FIXED_INPUTS
from qtool.core.data.noise_inputs import Noise
from qtool.core.downloads import DOWNLOAD, check_download
from qtool.core.errors import CaptureError, FileError
from qtool.core.log import log_warning
from qtool.core.paths import is_file
from qtool.core.remedies import Argument, OtherFile
from qtool.core.types import Array
from qtool.core.value_names import unique
from qtool.frontends.fixed_dimensions import fix_dimensions, fixed_sentence
from qtool.frontends.onnx.check import check_and_inline, compare_with_runtime, refuse_draws
from qtool.frontends.onnx.example_sizes import (
    DYNAMIC_BATCH,
    check_input,
    fewer_dimensions,
    fix_inputs,
    for_files,
    in_order,
    with_branches,
    with_own_sizes,
    without_ones,
)
from qtool.frontends.onnx.external_weights import NO_EXTERNAL_WEIGHTS, map_external_weights
from qtool.frontends.onnx.float32_copy import convert_to_float32, types_to_convert
from qtool.frontends.onnx.onnx_module import OnnxModule
from qtool.frontends.onnx.open_dimensions import separate_names
from qtool.frontends.onnx.runtime_values import run_file, take_draws
from qtool.frontends.torch.example_inputs import (
    FixedSizeError,
    check_axes,
    check_inputs,
    is_default,
)
from qtool.frontends.torch.export_module import capture_module
from qtool.frontends.torch.exported_program import first_line
from qtool.frontends.torch.shape_decisions import condition_sentences

FEW = 2  # number of samples where the values of a model may be larger than memory
_DRAWS_AS_INPUT = OtherFile("give them as an input")
_STEP = re.compile(r"steps\.(\d+)(?:\.(.*))?")
_STEP_IN_MESSAGE = re.compile(r"\bsteps\.(\d+)(?:\.\w+)*")
Dynamic = Mapping[str, Mapping[int, str]]


def load_onnx(path: str | Path, fixed: Mapping[str, Any] | None = None) -> OnnxModule:
    """Load the network of a float ONNX file, in eval mode.

    All operators of ONNX Runtime are supported; ONNX Runtime runs those that have no torch form.

    Args:
        path: path of the file.
        fixed: input -> value: these inputs become constants, and an If on one of them the nodes of
            one branch.

    Raises:
        CaptureError: the file is unreadable, invalid or quantized already, draws random numbers,
            has inputs that are not tensors, or no such inputs as `fixed` has.
    """

    return _load(Path(path), True, fixed or {})


def map_onnx(path: str | Path) -> OnnxModule:
    """Load an ONNX file like `load_onnx`, with external weights mapped instead of read.

    Raises:
        CaptureError: as for `load_onnx`; or external data is missing or truncated.
    """

    return _load(Path(path), False, {})


def _load(file: Path, whole: bool, fixed: Mapping[str, Any]) -> OnnxModule:
    """Load a file; `whole`: with its external weights, which else are mapped."""
    check_download(file, CaptureError)
    try:
        model = _message(file, whole)
        types = types_to_convert(model)
        external = NO_EXTERNAL_WEIGHTS if whole else map_external_weights(model, file.parent, types)
        notes = (*convert_to_float32(model, types), *notes_on_inputs(model))
        constants = fix_inputs(model, fixed)
        model = check_and_inline(model)
        draws = take_draws(model) if whole else None
        refuse_draws(model, _DRAWS_AS_INPUT)  # those of inner graphs, too
        module = OnnxModule(model, external, constants, notes=notes, draws=draws).eval()
    except CaptureError as error:
        raise CaptureError(f"{file}: {error.problem}", *error.remedies) from error
    module.path = file.absolute()
    module.file_bytes = sum(f.stat().st_size for f in model_files(file))
    return module


def _message(file: Path, whole: bool) -> onnx.ModelProto:
    """Return the message of a file; `whole`: with the weights of other files."""
    if not is_file(file):
        raise CaptureError("no such file")
    try:
        model = onnx.load(file, load_external_data=False)
        check_weight_files(model, file.parent)
        if whole:
            load_external_data_for_model(model, str(file.parent))
        expand_sparse(model)
    except FileError as error:
        raise CaptureError(error.problem, *error.remedies) from error
    except Exception as error:
        why = f"not a readable ONNX file ({first_line(error)})"
        raise CaptureError(why, DOWNLOAD) from error
    return model


def capture_onnx(model: OnnxModule, example: Batch, dynamic: Dynamic | None = None) -> G.FloatGraph:
    """Capture the float graph, with the names of the file.

    Its outputs on the example are compared with ONNX Runtime, unless weights are external.

    Args:
        model: the loaded file.
        example: one batch, by position or by the names of the file's inputs; other floating point
            types are converted where the file takes float32 alone.
        dynamic: as for `capture_module`; by default the dynamic dimensions of the file, to which
            `AddedSizes` adds others. Of these, as few as possible are fixed where tracing fails or
            the graph is not right at other sizes, the first ones last; each is logged and is in
            `size_conditions`.

    Raises:
        CaptureError: the batch does not fit the file, ONNX Runtime cannot run it, qtool computes an
            operator differently (names it), or torch.export cannot trace the model.
    """
    if model.draws is not None and Noise.of(model) is None:
        node = next(n for n in model.nodes if n.inputs == model.draws.names[:1])
        remedy = Argument("--noise-input", text="make them an input with {}")
        raise CaptureError(f"{node.label} draws random numbers", remedy)
    batch = model.in_float32(Batch(in_order(model, example)))
    wanted = _wanted_dimensions(model, batch, dynamic)
    for (name, kind), tensor in zip(model.inputs.items(), batch.args, strict=True):
        check_input(name, kind, tensor, wanted)
    own, (batch, wanted) = batch, without_ones(model, batch, wanted)
    model = with_branches(model, batch)
    few = _few_samples(model, batch, wanted)
    if model.external.arrays:
        model.observe(few.args, whole=False)
        model.external.release()
    else:
        _check_against_runtime(model, few, batch)
    candidates = (
        [wanted, *fewer_dimensions(batch.args, wanted)] if is_default(dynamic) else [wanted]
    )
    graph, reason = _capture_first(model, batch, own, candidates)
    graph.size_conditions = (*_lost(graph, wanted, reason), *graph.size_conditions)
    if model.external.arrays:
        return graph
    return fix_dimensions(graph, partial(_outputs, model, graph), partial(_renamed, model, batch))


def _outputs(model: OnnxModule, graph: G.FloatGraph, batch: Batch) -> list[torch.Tensor]:
    """Return the outputs of the file in ONNX Runtime, which knows nothing of how qtool reads it."""
    pairs = zip(graph.inputs, graph.tensors_of(batch), strict=True)
    outputs = run_file(model.model, {i.name: t.detach().cpu().numpy() for i, t in pairs})
    return [tensor_of(outputs[name]) for name in model.outputs]


def _capture_first(
    model: OnnxModule, batch: Batch, own: Batch, candidates: Sequence[Dynamic]
) -> tuple[G.FloatGraph, str]:
    """Capture with the first of these sets of dynamic dimensions that can be traced.

    Args:
        batch: the example, of which sizes of 1 were doubled to be dynamic.
        own: the example as it is, whose sizes fixed dimensions get.
        candidates: sets of dynamic dimensions.

    Returns:
        The graph, and why it has not the dimensions of the first candidate; "" if it has.
    """
    errors: list[CaptureError] = []
    reason = ""
    while True:
        for sizes in candidates:
            graph = _traced(model, with_own_sizes(model, batch, own, sizes), sizes, errors)
            reason = reason or "".join(_untraced(model, error) for error in errors[:1])
            if graph is not None:
                return graph, reason
        if model.untraced <= model.fallback:
            raise errors[-1]
        model.fallback |= model.untraced


def _traced(
    model: OnnxModule, batch: Batch, sizes: Dynamic, errors: list[CaptureError]
) -> G.FloatGraph | None:
    try:
        return _renamed(model, batch, sizes)
    except CaptureError as error:
        errors.append(error)
        return None


def _untraced(model: OnnxModule, error: CaptureError) -> str:
    """Return why a set of dynamic dimensions could not be traced; names the operator if known."""
    nodes = sorted(model.untraced - model.fallback)
    if nodes:
        node = model.nodes[nodes[0]]
        return f"{node.label} ({node.key}) is not traced with a dynamic size"
    fixed = isinstance(error.__cause__, FixedSizeError)
    why = str(error).partition(";")[0].removeprefix("torch.export cannot capture the model: ")
    return "the operators compute with that number" if fixed else why


def _lost(graph: G.FloatGraph, wanted: Dynamic, reason: str) -> Iterator[str]:
    """Yield a sentence for each wanted dimension that the graph has fixed, and log it."""
    for spec in graph.inputs:
        for axis, name in wanted.get(spec.name, {}).items():
            if isinstance(spec.shape[axis], int):
                why = reason or "the operators compute with that number"
                sentence = fixed_sentence(spec.name, axis, name, spec.shape[axis], why)
                log_warning(sentence)
                yield sentence


def _renamed(model: OnnxModule, batch: Batch, dynamic: Dynamic) -> G.FloatGraph:
    """Capture, and give the graph the names of the file."""
    names = {old: new for new, old in model.arguments.items()}
    model.conditions.clear()
    graph = _capture(model, batch, {names.get(n, n): axes for n, axes in dynamic.items()})
    graph.inputs = tuple(G.Input(model.arguments[i.name], i.dtype, i.shape) for i in graph.inputs)
    graph.outputs = model.outputs
    for node in G.placeholders(graph.graph)[:1]:
        node.meta[FIXED_INPUTS] = model.qtool_fixed_inputs
    graph.size_conditions = (*condition_sentences(model.conditions, graph), *graph.size_conditions)
    graph.metadata = read_source_metadata(model.model)
    _name_nodes(graph, model)
    return graph


def _few_samples(model: OnnxModule, batch: Batch, dynamic: Dynamic) -> Batch:
    """Return the first samples of inputs with a dynamic first size."""
    pairs = zip(model.inputs, batch.args, strict=True)
    return Batch(tuple(t[:FEW] if 0 in dynamic.get(name, {}) else t for name, t in pairs))


def _check_against_runtime(model: OnnxModule, few: Batch, batch: Batch) -> None:
    """Check that qtool computes the outputs that ONNX Runtime computes, on a few samples, since all
    values of the file are in memory; on the batch where the file cannot run those."""
    try:
        arrays, expected = _in_runtime(model, few)
    except DeadlineError:
        raise
    except CaptureError:  # the first size is no number of samples
        few = batch
        arrays, expected = _of_any_size(model, batch)
    _refuse_non_tensors(expected)
    compare_with_runtime(model, arrays, expected, model.observe(few.args))


def _of_any_size(model: OnnxModule, batch: Batch) -> tuple[dict[str, Array], dict[str, Array]]:
    """Like `_in_runtime`; the error tells of a file that takes single samples alone, whatever its
    inputs declare."""
    try:
        return _in_runtime(model, batch)
    except CaptureError as error:
        one = Batch(tuple(t[:1] for t in batch.args))
        if batch.size > 1 and _runs(model, one):
            raise CaptureError(
                "the file runs with one sample alone, whatever its inputs declare",
                Argument("--batch-size", 1, "give batches of 1 ({})"),
                DYNAMIC_BATCH,
            ) from error
        raise


def _runs(model: OnnxModule, batch: Batch) -> bool:
    try:
        _in_runtime(model, batch)
    except CaptureError:
        return False
    return True


def _in_runtime(model: OnnxModule, batch: Batch) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the inputs and the outputs of the file by name."""
    arrays = {n: t.detach().cpu().numpy() for n, t in zip(model.inputs, batch.args, strict=True)}
    return arrays, run_file(model.model, arrays)


def _capture(model: OnnxModule, batch: Batch, dynamic: Dynamic) -> G.FloatGraph:
    """Call `capture_module`; errors have the names of the file."""
    try:
        return capture_module(model, batch, dynamic, has_weights=not model.external.arrays)
    except CaptureError as error:
        text = _STEP_IN_MESSAGE.sub(lambda m: model.nodes[int(m[1])].label, error.problem)
        raise CaptureError(text, *for_files(error.remedies)) from error


def _wanted_dimensions(model: OnnxModule, batch: Batch, dynamic: Dynamic | None) -> Dynamic:
    """Return the given dimensions; by default those of the file, with additions."""
    if dynamic is not None and not is_default(dynamic):
        return dynamic
    added = dynamic or {}
    check_inputs(added, model.inputs)
    for name, tensor in zip(model.inputs, batch.args, strict=True):
        check_axes(name, [axis for axis in added.get(name, {}) if axis], tensor)
    return {n: {**dims, **added.get(n, {})} for n, dims in _open_dimensions(model, batch).items()}


def _open_dimensions(model: OnnxModule, batch: Batch) -> Dynamic:
    """Return input -> dynamic dimensions; of an input without a shape the first one."""
    dims: dict[str, Mapping[int, str]] = {}
    for (name, kind), tensor in zip(model.inputs.items(), batch.args, strict=True):
        ranked = kind.HasField("shape")
        dims[name] = model.dynamic[name] if ranked else {0: "batch"} if tensor.dim() else {}
    shapes = zip(model.inputs, (t.shape for t in batch.args), strict=True)
    return separate_names(dims, dict(shapes))


def _refuse_non_tensors(outputs: Mapping[str, Any]) -> None:
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray) or value.dtype == object:
            raise CaptureError(
                f"output '{name}' of the file is not a numeric tensor",
                OtherFile("remove it from the outputs"),
            )


def _name_nodes(graph: G.FloatGraph, model: OnnxModule) -> None:
    weights = {attribute: name for name, attribute in model.attributes.items()}
    last: dict[str, str] = {}  # step -> name of the call that returns its result
    for node in G.calls(graph.graph):
        match = _STEP.fullmatch(G.name_of(node))
        if match and not _is_output_selection(node):
            last[match[1]] = G.name_of(node)
    taken = {G.OUTPUT}
    for node in graph.graph.nodes:
        if node.op == "output":
            continue
        old = G.name_of(node)
        match = _STEP.fullmatch(old)
        if node.op == "placeholder":
            new = model.arguments[str(node.target)]
        elif match and node.op == "call_function":
            label = model.nodes[int(match[1])].label
            part = f"{node.args[1]}" if _is_output_selection(node) else match[2]
            new = label if last.get(match[1]) == old else f"{label}.{part}"
        else:
            new = weights.get(old, old)
        if match and node.target is onnx_part and int(match[1]) in model.reasons:
            node.meta[G.KEPT_FORM] = model.reasons[int(match[1])]
        node.meta[G.NAME] = unique(new, taken)
        taken.add(node.meta[G.NAME])


def _is_output_selection(node: Any) -> bool:
    """Return whether a node selects a result of a part that ONNX Runtime runs."""
    return bool(node.args) and getattr(node.args[0], "target", None) is onnx_part
