"""Restore the quantized model of an exported file with its float model, or a float model from the
file alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass

from qtool.algorithms.pipeline import ConversionState, replay_changes
from qtool.algorithms.registry import STEPS
from qtool.backends.onnx.file_info import FileInfo
from qtool.backends.onnx.reading import OnnxModel, array_of, input_at
from qtool.backends.onnx.storage import load_outline
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph
from qtool.backends.tflite.file import is_tflite, load
from qtool.calibration.solve_parameters import Parameters
from qtool.conversion.quantized import Quantized
from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.data import Batch
from qtool.core.errors import FileError, PlanError, QtoolError, VerificationError
from qtool.core.graph import torch_ops
from qtool.core.paths import is_file
from qtool.core.types import INT32, Derived, Dynamic, Fixed, Observed, QuantParams, Requantized
from qtool.frontends.captured_model import Captured
from qtool.planning.fake_quantize import quant_points
from qtool.planning.plan import Execution, Kind, Point, QuantPlan
from qtool.planning.planner import make_plan
from qtool.planning.recipe import Recipe
from qtool.planning.targets import target

_QUANTIZED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "QLinear",
    "Integer",
    "DynamicQuantize",
    "MatMulNBits",
    "GatherBlockQuantized",
)
"""Parts of the types of operators on quantized tensors."""


def read_onnx(path: str | Path) -> onnx.ModelProto:
    """Return an ONNX model without its external weights.

    Raises:
        FileError: not an ONNX model.
    """
    if not is_file(path):
        raise FileError(f"{path}: no such file")
    model = load_outline(path)
    if not model.graph.node and not model.graph.output:
        raise FileError(f"{path}: not an ONNX model, or an empty one")
    return model


def read_model(path: str | Path) -> None:
    """Check that a path is an ONNX or a TFLite model; FileError if not."""
    if not is_file(path):
        raise FileError(f"{path}: no such file")
    if is_tflite(path):
        load(path)
    else:
        read_onnx(path)


def is_quantized(path: str | Path) -> bool:
    """Return True if a file has quantized tensors."""
    if is_tflite(path):
        return any(t.quantization is not None for t in load(path).tensors)
    model = read_onnx(path)
    nodes = chain(model.graph.node, *(function.node for function in model.functions))
    return any(mark in n.op_type for n in nodes for mark in _QUANTIZED)


def check_quantized(path: str | Path) -> None:
    """Check that a file has something to verify.

    Raises:
        FileError: not an ONNX model, or one without quantized operators.
    """
    if not is_quantized(path):
        raise FileError(
            f"{path}: it has no quantized operator, so there is nothing to verify; give the file "
            "that `qtool quantize` wrote"
        )


def quantization_warnings(path: Path) -> list[str]:
    """Return a sentence if a file that should be quantized is not."""
    if is_quantized(path):
        return []
    return [f"{path.name} is not quantized: no tensor in it is int8 or of fewer bits"]


def restore(
    path: str | Path,
    captured: Captured,
    sample: Batch,
    *,
    weights: bool = True,
    recipe: Recipe | None = None,
) -> Quantized:
    """Return the quantized model that `path` was exported from.

    The plan is made again from the metadata of the file. Parameters come from the file, and so do
    weights that a step of the conversion or training changed.

    Args:
        captured: the float model.
        sample: a batch of its inputs.
        weights: False keeps the weights as they were before weight rounding.
        recipe: replaces that of the file, to keep more in float; everything else is unchanged.

    Raises:
        VerificationError: the file was not made by qtool, or from another model.
    """
    file = OnnxModel.of(path)
    info = FileInfo.of(file.outline)
    if info is None:
        raise VerificationError(f"{path} was not made by qtool")
    try:
        plan = captured.plan(info.target, info.observer, info.recipe)
    except PlanError as error:
        raise VerificationError(f"{path} does not fit this model: {error}") from error
    state = replay_changes(STEPS, ConversionState.start(captured, plan), info.changes)
    exported = {(n.node, n.op, n.form) for n in info.nodes}
    if exported != {
        (d.node, d.op, d.execution.value)
        for d in state.plan.nodes
        if d.execution is not Execution.SHAPE
    }:
        raise VerificationError(f"{path} was made from another model, or with other options")
    if recipe is not None:
        chosen = target(info.target)
        state = replace(state, plan=make_plan(state.graph.graph, chosen, info.observer, recipe))
    stored = _FileConstants(file)
    params = {
        p.name: _params(p, state.plan, stored)
        for p in state.plan.placed
        if not isinstance(p.spec, Dynamic)
    }
    model = Quantized(replace(state, parameters=Parameters(params)), state.graph.bind(sample))
    if weights:
        _take_weights(model, stored)
    return model


class _FileConstants:
    """Arrays of each point in a file, by the names that the export uses."""

    def __init__(self, file: OnnxModel) -> None:
        self.stored = file.model.graph.initializers
        self.readers = {n.name: n for n in file.nodes if n.op_type == "DequantizeLinear"}

    def parameters(self, point: str, root: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale (float32) and zero point (int64) in their stored shapes.

        Raises:
            VerificationError: the file has none.
        """
        node = self.readers.get(value_names.dequantize(point)) or self.readers.get(
            value_names.dequantize(root)
        )
        if node is None:
            own = (value_names.scale(point), value_names.zero_point(point))
            scale, zero = (array_of(self.stored.get(name)) for name in own)
        else:
            scale, zero = (array_of(input_at(node, i)) for i in (1, 2))
        if scale is None:
            raise VerificationError(f"the file holds no parameters of '{point}'")
        zero = np.zeros(scale.shape, np.int64) if zero is None else zero
        scale = np.where(scale == 0, 1, scale)  # a tensor of zeros
        return torch.from_numpy(scale.astype(np.float32)), torch.from_numpy(zero.astype(np.int64))

    def codes(self, point: str) -> torch.Tensor | None:
        node = self.readers.get(value_names.dequantize(point))
        value = self.stored.get(value_names.codes(point)) if node is None else input_at(node, 0)
        array = array_of(value)
        return None if array is None else torch.from_numpy(array)


def _params(point: Point, plan: QuantPlan, stored: _FileConstants) -> QuantParams:
    root = plan.point(plan.root(point.name))
    if isinstance(root.spec, Fixed):
        return root.spec.params
    scale, zero = stored.parameters(point.name, root.name)
    if isinstance(root.spec, Derived):
        return QuantParams(INT32, scale, zero, 0)
    if isinstance(root.spec, Requantized):
        return QuantParams(root.spec.qtype, scale, zero)
    assert isinstance(root.spec, Observed)
    spec = root.spec
    if point.edges and _is_lstm_weight(plan, point):  # equal in both directions
        return QuantParams(spec.qtype, scale[0], zero[0], spec.axis)
    if scale.dim() == 2:  # in blocks, as MatMulNBits has them
        qtype = spec.qtype
        if qtype.signed:
            zero = torch.zeros(scale.shape, dtype=torch.int64)
        else:
            bits = torch_ops.unpack(zero.to(torch.uint8), scale.shape[1], qtype.bits)
            zero = bits.to(torch.int64)
        if spec.block is None:  # a scale for each channel, repeated
            return QuantParams(qtype, scale[:, 0], zero[:, 0], spec.axis)
        return QuantParams(qtype, scale, zero, spec.axis, spec.block)
    return QuantParams(spec.qtype, scale, zero, spec.axis if scale.dim() else None)


def _take_weights(model: Quantized, stored: _FileConstants) -> None:
    """Replace weights that do not round to the codes of the file by the dequantized codes."""
    nodes = {G.name_of(n): n for n in model.module.graph.nodes}
    points = quant_points(model.module)
    for point in model.plan:
        codes = stored.codes(point.name)
        if point.kind is Kind.ACTIVATION or codes is None or point.name not in points:
            continue
        params = model.parameters[point.name]
        tensor = G.tensor(model.module, nodes[point.edges[0].source])
        if codes.dim() == 3 and tensor.dim() == 2:
            bits, half = params.qtype.bits, 2 ** (params.qtype.bits - 1)
            codes = torch_ops.unpack(codes.flatten(1), tensor.shape[-1], bits).to(torch.int16)
            codes = codes - (half if params.qtype.signed else 0)
            codes = codes.to(params.qtype.torch_dtype)
        elif _is_transposed(model.plan, point):
            codes = codes.t()
        elif _is_lstm_weight(model.plan, point):
            codes = codes.transpose(1, 2)
        with torch.no_grad():
            if not torch.equal(params.quantize(tensor.detach()), codes):
                tensor.copy_(params.dequantize(codes))


def _is_lstm_weight(plan: QuantPlan, point: Point) -> bool:
    """Return True if a weight has the layout of DynamicQuantizeLSTM."""
    user = plan.decision(point.edges[0].user)
    return user is not None and user.op == "lstm" and user.execution is Execution.DYNAMIC


def _is_transposed(plan: QuantPlan, point: Point) -> bool:
    """Return True if a weight is [in, out] in the file, the layout of its kernel."""
    user = plan.decision(point.edges[0].user)
    return (
        user is not None
        and user.op == "linear"
        and user.execution in (Execution.DYNAMIC, Execution.WEIGHTS)
    )


def remove_quantization(path: str | Path) -> onnx.ModelProto:
    """Return a QDQ model without QuantizeLinear and DequantizeLinear, on its rounded weights.

    Replaces the float model if only the quantized file is available.

    Raises:
        VerificationError: the file is not a QDQ model.
        KernelError: scales of a weight do not fit it.
    """
    file = OnnxModel.of(path)
    graph, ends = QdqGraph(file), ("QuantizeLinear", "DequantizeLinear")
    rounded = [n for n in file.nodes if n.op_type in ends]
    if not any(n.op_type == ends[0] for n in rounded):
        raise VerificationError(
            f"{path} has no QuantizeLinear nodes; pass its float model with --model"
        )
    for node in rounded:
        if len(node.inputs) < 2 or not node.outputs:
            raise VerificationError(f"the graph is invalid: {node.name} lacks inputs or outputs")
        output, source = node.outputs[0], node.inputs[0]
        codes = graph.codes(output)
        if codes is not None and codes.constant is not None:
            real = codes.dequantize().numpy()
            source = ir.Value(name=f"{output.name}/float", const_value=ir.Tensor(real))
            file.model.graph.register_initializer(source)
        if source is None or source is output:
            raise VerificationError(f"the graph is invalid: '{output.name}' depends on itself")
        _replace_value(output, source)
    RemoveUnusedNodesPass()(file.model)
    return ir.to_proto(file.model)


def _replace_value(value: ir.Value, source: ir.Value) -> None:
    """Let all consumers of a value read `source`; a graph output keeps its name."""
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    if value.is_graph_output():
        node = ir.Node("", "Identity", [source], name=f"{value.name}/Identity")
        output = node.outputs[0]
        output.name, output.type, output.shape = value.name, value.type, value.shape
        value.name = f"{value.name}/rounded"
        graph.append(node)
        for i, each in enumerate(graph.outputs):
            if each is value:
                graph.outputs[i] = output
    value.replace_all_uses_with(source)


def try_restore(path: str | Path, captured: Captured, sample: Batch) -> Quantized | str:
    """Return `restore`, or the reason in a sentence if it fails."""
    try:
        return restore(path, captured, sample)
    except QtoolError as error:
        return str(error)
