"""Checks that a file is valid float ONNX within the expansion limits."""

from __future__ import annotations

import onnx
from onnx import numpy_helper
from onnx.inliner import inline_local_functions

from qtool.backends.onnx.checker import check_model, function_expansion_error
from qtool.backends.onnx.loops import endless_loop
from qtool.backends.onnx.nested_graphs import nested_nodes
from qtool.backends.onnx.storage import fits_one_message, outline
from qtool.backends.onnx.subgraph import TORCH_TYPES
from qtool.backends.onnx.topological_order import sort_graphs
from qtool.core.errors import CaptureError
from qtool.core.remedies import OtherFile
from qtool.frontends.onnx.open_dimensions import clear_unnamed
from qtool.frontends.onnx.value_names import label_of
from qtool.frontends.torch.exported_program import first_line

_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_RANDOM = ("RandomNormal", "RandomUniform", "Multinomial", "Bernoulli")  # or ...Like
_OPSETS = range(1, onnx.defs.onnx_opset_version() + 1)


def check_and_inline(model: onnx.ModelProto) -> onnx.ModelProto:
    """Check a model, and return it with its functions inlined and its nodes in order.

    Raises:
        CaptureError: the model is invalid, too large after inlining, quantized already, draws
            random numbers, or has inputs that are not tensors of numbers.
    """
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    for version in versions:
        if version not in _OPSETS:
            raise CaptureError(
                f"the file has opset {version}; supported are {_OPSETS[0]} to {_OPSETS[-1]}",
                OtherFile("convert it with onnx.version_converter"),
            )
    _refuse_bombs(model)
    try:
        sort_graphs(model.graph)  # tools that convert to float16 append the casts of inputs
        _check(model if fits_one_message(model) else outline(model))
        model = inline_local_functions(model) if model.functions else model
    except Exception as error:
        raise CaptureError(f"not a valid ONNX file: {first_line(error)}") from error
    for node in nested_nodes(model.graph.node):
        if node.op_type in _QUANTIZED:
            raise CaptureError(
                f"the file is quantized already ({node.op_type} at {label_of(node)})",
                OtherFile("give the float file"),
            )
        if node.op_type.removesuffix("Like") in _RANDOM:
            raise CaptureError(
                f"{label_of(node)} ({node.op_type}) draws random numbers",
                OtherFile("give them as an input"),
            )
    _refuse_training(model)
    _refuse_empty_gru(model)
    _refuse_types(model.graph)
    _normalize(model)
    return model


def _refuse_training(model: onnx.ModelProto) -> None:
    """Refuse active dropouts, and BatchNorms whose stored statistics each run would update."""
    stored = {i.name: i for i in model.graph.initializer}
    for node in nested_nodes(model.graph.node):
        if node.op_type == "Dropout" and _is_true(stored.get(("", *node.input[2:])[-1])):
            raise CaptureError(
                f"{label_of(node)} (Dropout) is in training mode, in which it draws random numbers",
                OtherFile("export the model in eval mode"),
            )
        training = any(a.name == "training_mode" and a.i for a in node.attribute)
        if node.op_type == "BatchNormalization" and training and stored.keys() & set(node.input):
            raise CaptureError(
                f"{label_of(node)} (BatchNormalization) is in training mode, in which ONNX "
                "Runtime changes its statistics at every run",
                OtherFile("export the model in eval mode"),
            )


def _refuse_empty_gru(model: onnx.ModelProto) -> None:
    """Refuse a GRU without input features, which crashes ONNX Runtime."""
    empty = {i.name for i in model.graph.initializer if 0 in i.dims}
    for node in nested_nodes(model.graph.node):
        if node.op_type == "GRU" and empty & set(node.input[1:2]):
            raise CaptureError(
                f"{label_of(node)} (GRU) has no input features", OtherFile("remove it")
            )


def _is_true(stored: onnx.TensorProto | None) -> bool:
    return stored is not None and bool(numpy_helper.to_array(stored).any())


def _normalize(model: onnx.ModelProto) -> None:
    """Add the default axes of MeanVarianceNormalization, which shape inference needs; remove empty
    inputs at the end, which crash ONNX Runtime's layout pass on a LayerNormalization; clear the
    sizes of open dimensions."""
    clear_unnamed(model)
    for node in nested_nodes(model.graph.node):
        while node.input and not node.input[-1]:
            node.input.pop()
        if node.op_type == "MeanVarianceNormalization" and not node.attribute:
            node.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))


def _check(model: onnx.ModelProto) -> None:
    try:
        check_model(_typed(model))
    except onnx.checker.ValidationError as error:
        if "deprecated" not in str(error):  # ONNX Runtime still supports these
            raise


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add types and shapes that the checker requires and ONNX Runtime infers."""
    infos = [*model.graph.input, *model.graph.output]
    if all(i.type.WhichOneof("value") and _ranked(i.type) for i in infos):
        return model
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    for info in (*typed.graph.input, *typed.graph.output):
        if not info.type.WhichOneof("value"):
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if not _ranked(info.type):
            info.type.tensor_type.shape.SetInParent()
    return typed


def _ranked(kind: onnx.TypeProto) -> bool:
    return not kind.HasField("tensor_type") or kind.tensor_type.HasField("shape")


def _refuse_bombs(model: onnx.ModelProto) -> None:
    for reason in (function_expansion_error(model), endless_loop(model.graph)):
        if reason is not None:
            raise CaptureError(reason)


def _refuse_types(graph: onnx.GraphProto) -> None:
    stored = {i.name for i in graph.initializer}
    inputs = [i for i in graph.input if i.name not in stored]
    if not inputs:
        raise CaptureError("the file has no inputs: there is nothing to quantize")
    if not graph.output:
        raise CaptureError("the file has no outputs")
    for info in inputs:
        kind = info.type.tensor_type
        if not info.type.HasField("tensor_type") or kind.elem_type not in TORCH_TYPES:
            raise CaptureError(
                f"input '{info.name}' of the file is not a tensor of a torch dtype",
                OtherFile("cut the file behind the nodes that read it"),
            )
