"""Checks that a file is valid float ONNX within the expansion limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.inliner import inline_local_functions

from qtool.backends.onnx.checker import check_model, function_expansion_error
from qtool.backends.onnx.loops import endless_loop
from qtool.backends.onnx.nested_graphs import nested_nodes, sort_graphs
from qtool.backends.onnx.storage import fits_one_message, outline
from qtool.backends.onnx.subgraph import TORCH_TYPES, tensor_of
from qtool.core.errors import CaptureError
from qtool.core.graph.finite_outputs import NOT_FINITE
from qtool.core.graph.float_tolerance import (
    NOISE_FACTOR,
    distance,
    dtype_tolerance,
    last_bit_perturbation,
)
from qtool.core.remedies import OtherFile, Remedy
from qtool.core.types import Array
from qtool.frontends.onnx.onnx_module import OnnxModule, Values
from qtool.frontends.onnx.open_dimensions import clear_unnamed, clear_wrong_ranks
from qtool.frontends.onnx.runtime_values import DRAWS, run_file
from qtool.frontends.onnx.value_names import label_of
from qtool.frontends.torch.exported_program import first_line

_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_OPSETS = range(1, onnx.defs.onnx_opset_version() + 1)
_APPROXIMATED = frozenset(
    [
        *("Sigmoid", "Softmax", "Tanh", "Erf", "Gelu", "Mish", "Swish"),
        *(f"com.microsoft.{name}" for name in ("Gelu", "FastGelu", "BiasGelu", "QuickGelu")),
    ]
)
_ROUNDED = 1e-6
"""Absolute error of ONNX Runtime's polynomials for these, also for tiny results: its Sigmoid
returns 1e-8 for 1e-35."""


def check_and_inline(model: onnx.ModelProto) -> onnx.ModelProto:
    """Check a model, and return it with its functions inlined and its nodes in order.

    Raises:
        CaptureError: the model is invalid, too large after inlining, quantized already, or
            has inputs that are not tensors of numbers.
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
    names = [output.name for output in model.graph.output]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CaptureError(f"'{twice}' is an output twice", OtherFile("remove it"))
    _refuse_training(model)
    _refuse_empty_gru(model)
    _refuse_types(model.graph)
    _normalize(model)
    return model


def refuse_draws(model: onnx.ModelProto, remedy: Remedy) -> None:
    """Raise a CaptureError with a remedy if a node draws random numbers."""
    for node in nested_nodes(model.graph.node):
        if node.op_type.removesuffix("Like") in DRAWS:
            where = f"{label_of(node)} ({node.op_type})"
            raise CaptureError(f"{where} draws random numbers", remedy)


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
    sizes of open dimensions and wrong ranks."""
    clear_unnamed(model)
    for node in nested_nodes(model.graph.node):
        while node.input and not node.input[-1]:
            node.input.pop()
        if node.op_type == "MeanVarianceNormalization" and not node.attribute:
            node.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))
    clear_wrong_ranks(model)


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


# Compares a file as qtool computes it with ONNX Runtime, on a batch.


def compare_with_runtime(
    model: OnnxModule,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    computed: Mapping[str, Any],
) -> None:
    """Compare outputs; if they differ, compare each operator on ONNX Runtime's own inputs to it.

    Rounding errors then do not accumulate: an operator that differs by more than float32 rounding
    is computed wrongly. If none does, the outputs differ only by accumulated rounding.

    Args:
        model: the file.
        inputs: name -> input array.
        expected: name -> output array of ONNX Runtime.
        computed: name -> value as qtool computes it, for all values of the file.

    Raises:
        CaptureError: an operator differs; names the first one.
    """
    pairs = [(_tensor(expected[n]), _tensor(computed[n], model.cast.get(n))) for n in model.outputs]
    if all(distance(a, b) <= dtype_tolerance(a) for a, b in pairs):
        return
    values: dict[str, Any] = {
        "": None,
        **model.constants,
        **inputs,
        **run_file(model.model, inputs, True),
    }
    reference = {n: _tensor(v) if n not in model.constants and n else v for n, v in values.items()}
    for index, node in enumerate(model.nodes):
        if index in model.fallback or not all(n in reference for n in node.inputs):
            continue
        arguments = _with_sizes(node.inputs, reference, computed)
        results = model.run_node(index, arguments)
        for place, (name, result) in enumerate(zip(node.outputs, results, strict=False)):
            if name not in reference:
                continue
            expect, actual = reference[name], _tensor(result, model.cast.get(name))
            error = distance(expect, actual)
            if error > dtype_tolerance(expect):
                if node.key in _APPROXIMATED and _is_near(actual, expect, arguments):
                    continue
                if _is_noise(model, index, arguments, place, expect):
                    continue
                if _overflows(expect, actual, arguments):
                    raise CaptureError(
                        f"{node.label} ({node.key}) overflows float32 on the first batch, and what "
                        "comes of it differs by runtime",
                        *NOT_FINITE,
                    )
                by = "in type or shape" if error == float("inf") else f"by {error:.2g} of its range"
                raise CaptureError(
                    f"qtool computes {node.label} ({node.key}) differently than ONNX Runtime: the "
                    f"result differs {by}; this is a bug in qtool, please report it"
                )


def _overflows(expected: torch.Tensor, actual: torch.Tensor, inputs: Mapping[str, Any]) -> bool:
    """Return whether a result of finite inputs is NaN or Inf for ONNX Runtime, or for qtool only
    where products of the inputs may be so large."""
    tensors = [v.detach() for v in inputs.values() if isinstance(v, torch.Tensor)]
    floats = [v for v in tensors if v.is_floating_point() and v.numel()]
    if not expected.is_floating_point() or not all(bool(v.isfinite().all()) for v in floats):
        return False
    large = any(float(v.abs().max()) > torch.finfo(v.dtype).max ** 0.5 for v in floats)
    return not bool(expected.isfinite().all()) or (large and not bool(actual.isfinite().all()))


def _is_near(actual: torch.Tensor, expected: torch.Tensor, inputs: Mapping[str, Any]) -> bool:
    tensors = [v for v in inputs.values() if isinstance(v, torch.Tensor) and v.numel()]
    largest = max([1.0, *(float(v.abs().max()) for v in tensors)])  # x * sigmoid(x)
    return actual.shape == expected.shape and bool(
        ((actual - expected).abs() <= _ROUNDED * largest).all()
    )


def _is_noise(
    model: OnnxModule, index: int, arguments: Values, place: int, expected: torch.Tensor
) -> bool:
    """Return whether changing the last bits of the inputs changes the result by a similar amount.

    A norm of equal values, for instance, divides rounding errors by its epsilon.
    """
    perturb = last_bit_perturbation()
    other = {n: perturb(v) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    plain, perturbed = (_tensor(model.run_node(index, v)[place]) for v in (arguments, other))
    if (
        plain.shape != expected.shape
        or plain.dtype != expected.dtype
        or not plain.is_floating_point()
    ):
        return False
    noise = float((plain - perturbed).abs().max())
    return float((plain - expected).abs().max()) <= NOISE_FACTOR * noise


def _tensor(value: Any, cast: torch.dtype | None = None) -> torch.Tensor:
    """Return a value as a tensor; `cast` is the type that the file casts sizes to."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    array = np.asarray(value)
    if array.dtype != object:
        return tensor_of(array)
    whole = all(isinstance(v, int) for v in array.ravel())
    sizes = tensor_of(array.astype(np.int64 if whole else np.float32))
    return sizes if cast is None else sizes.to(cast)


def _with_sizes(
    names: tuple[str, ...], reference: Mapping[str, Any], computed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ONNX Runtime's tensors, but qtool's own sizes, which rules need as numbers."""
    sizes = {n: computed[n] for n in names if isinstance(computed.get(n), np.ndarray)}
    return {**{n: reference[n] for n in names}, **sizes}
