"""Runs a file in ONNX Runtime: types of its values, and their values on a batch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import onnxruntime as ort
import torch
from onnx import helper

from qtool.backends.onnx.loops import DeadlineError, run_within
from qtool.backends.onnx.storage import fits_one_message, save
from qtool.backends.onnx.subgraph import runtime_message, tensor_of, unoptimized_session
from qtool.core.data import Batch
from qtool.core.data.noise_inputs import Noise, noise_names, seed_of
from qtool.core.errors import CaptureError
from qtool.core.remedies import OtherFile
from qtool.core.types import Array

_NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float double"
_TENSORS = frozenset(f"tensor({name})" for name in _NUMBERS.split())


def non_tensor_values(model: onnx.ModelProto) -> frozenset[str]:
    """Return the intermediate values that torch has no tensors for: sequences, strings, 4-bit.

    Raises:
        CaptureError: ONNX Runtime cannot load the file.
    """
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    names = _intermediate_values(model)
    extended.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    try:
        outputs = _open_session(extended).get_outputs()
    except Exception as error:
        raise _run_error(error, model) from error
    return frozenset(o.name for o in outputs if o.type not in _TENSORS)


def run_file(
    model: onnx.ModelProto, inputs: Mapping[str, Array], every: bool = False
) -> dict[str, Array]:
    """Return the outputs of a file by name.

    Args:
        model: the file.
        inputs: name -> array.
        every: also return all intermediate tensors.

    Raises:
        CaptureError: ONNX Runtime cannot run the file on this batch.
    """
    extended = model
    if every:
        excluded = non_tensor_values(model)
        extended = onnx.ModelProto()
        extended.CopyFrom(model)
        between = [n for n in _intermediate_values(model) if n not in excluded]
        extended.graph.output.extend(onnx.ValueInfoProto(name=n) for n in between)
    return open_file(extended)(inputs)


def open_file(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Return a function from the inputs of a file to its outputs, both by name.

    Raises:
        CaptureError: ONNX Runtime cannot load the file, or run it on a batch.
    """
    names = [o.name for o in model.graph.output]
    try:
        session = _open_session(model)
    except Exception as error:
        raise _run_error(error, model) from error

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            results = run_within(session, inputs, model.graph, names)
        except DeadlineError:
            raise
        except Exception as error:
            raise _run_error(error, model) from error
        return dict(zip(names, results, strict=True))

    return run


def _open_session(model: onnx.ModelProto) -> ort.InferenceSession:
    if fits_one_message(model):
        return unoptimized_session(model)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.onnx"
        save(model, path)
        return unoptimized_session(path)


def _intermediate_values(model: onnx.ModelProto) -> list[str]:
    outputs = {o.name for o in model.graph.output}
    values = dict.fromkeys(o for n in model.graph.node for o in n.output if o)
    return [n for n in values if n not in outputs]


def _run_error(error: Exception, model: onnx.ModelProto) -> CaptureError:
    """Return an error with the runtime's message; the runtime has few operators before opset 13."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    old = opset < 13 and "find an implementation" in str(error)
    return CaptureError(
        f"ONNX Runtime cannot run the file: {runtime_message(error)}",
        *([OtherFile("convert it with onnx.version_converter")] if old else []),
    )


# Random numbers that the nodes of a file draw, as inputs of the file.

DRAWS = ("RandomNormal", "RandomUniform", "Multinomial", "Bernoulli")  # or ...Like
_TYPES = onnx.TensorProto.DataType


def take_draws(model: onnx.ModelProto) -> Noise | None:
    """Turn what the nodes of a file draw into inputs behind its others, in place.

    Returns:
        What has ONNX Runtime draw for a batch; None if no node of the graph itself draws.
    """
    nodes = [n for n in model.graph.node if n.op_type.removesuffix("Like") in DRAWS]
    if not nodes:
        return None
    drawing = onnx.ModelProto()
    drawing.CopyFrom(model)
    del drawing.graph.output[:]
    drawing.graph.output.extend(onnx.ValueInfoProto(name=n.output[0]) for n in nodes)
    stored = {i.name for i in model.graph.initializer}
    kinds = {i.name: i.type.tensor_type for i in model.graph.input if i.name not in stored}
    names = noise_names(len(nodes), kinds)
    drawn = unoptimized_session(drawing).get_outputs()
    for node, name, output in zip(nodes, names, drawn, strict=True):
        code = _TYPES.Value(output.type.removeprefix("tensor(").removesuffix(")").upper())
        model.graph.input.append(helper.make_tensor_value_info(name, code, output.shape or None))
        node.CopyFrom(helper.make_node("Identity", [name], node.output, node.name))

    def draw(batch: Batch) -> Mapping[str, torch.Tensor]:
        _seed(drawing, seed_of(batch))
        tensors = dict(zip(kinds, batch.args, strict=False)) | batch.kwargs
        values = open_file(drawing)({k: _array(t, kinds[k]) for k, t in tensors.items()})
        return dict(zip(names, map(tensor_of, values.values()), strict=True))

    return Noise(names, draw)


def _seed(model: onnx.ModelProto, seed: int) -> None:
    """Give each drawing node a seed of its own."""
    for index, node in enumerate(model.graph.node):
        if node.op_type.removesuffix("Like") in DRAWS:
            others = [a for a in node.attribute if a.name != "seed"]
            del node.attribute[:]
            node.attribute.extend([*others, helper.make_attribute("seed", float(seed + index))])


def _array(tensor: torch.Tensor, kind: onnx.TypeProto.Tensor) -> Array:
    return tensor.numpy(force=True).astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
