"""The quantized model behind an exported file, given the float model it was made from; and the
float model behind a file, where there is nothing else."""

from __future__ import annotations

from dataclasses import replace
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


def read_onnx(path: str | Path) -> onnx.ModelProto:
    """A file without its weights, where they stand in a second one.

    Raises FileError unless the file is an ONNX model.
    """
    if not is_file(path):
        raise FileError(f"{path}: no such file")
    model = load_outline(path)
    if not model.graph.node and not model.graph.output:
        raise FileError(f"{path}: not an ONNX model, or an empty one")
    return model


def is_quantized(path: str | Path) -> bool:
    """Whether any tensor of a file is in codes."""
    marks = ("QuantizeLinear", "QLinear", "Integer")
    return any(mark in n.op_type for n in read_onnx(path).graph.node for mark in marks)


def restore(
    path: str | Path,
    captured: Captured,
    sample: Batch,
    *,
    weights: bool = True,
    recipe: Recipe | None = None,
) -> Quantized:
    """The quantized model that `path` was exported from: planned again from what the file says of
    itself, with its parameters, and its weights where they were changed on the way (by a step of
    the conversion, or training).

    Args:
        captured: the float model.
        sample: a batch of its inputs.
        weights: False leaves the weights as they were before they were rounded for their layers.
        recipe: another one than the file's, that leaves more in float; all else as it is there.

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
    made = {(n.node, n.op, n.form) for n in info.nodes}
    if made != {
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
    found = Quantized(replace(state, parameters=Parameters(params)), state.graph.bind(sample))
    if weights:
        _take_weights(found, stored)
    return found


class _FileConstants:
    """What a file holds of each point: arrays, by the names that export gives them."""

    def __init__(self, file: OnnxModel) -> None:
        self.stored = file.model.graph.initializers
        self.readers = {n.name: n for n in file.nodes if n.op_type == "DequantizeLinear"}

    def parameters(self, point: str, root: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale (float32) and zero point (int64), in the shapes that they are stored in.

        Raises:
            VerificationError: there are none.
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
        scale = np.where(scale == 0, 1, scale)  # of zeros alone
        return torch.from_numpy(scale.astype(np.float32)), torch.from_numpy(zero.astype(np.int64))

    def codes(self, point: str) -> torch.Tensor | None:
        node = self.readers.get(value_names.dequantize(point))
        value = self.stored.get(value_names.codes(point)) if node is None else input_at(node, 0)
        found = array_of(value)
        return None if found is None else torch.from_numpy(found)


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
    if point.edges and _is_lstm_weight(plan, point):  # alike in each direction
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
    """Weights that do not round to the file's codes are replaced by what the codes mean."""
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
    """Whether a weight stands as DynamicQuantizeLSTM takes it."""
    user = plan.decision(point.edges[0].user)
    return user is not None and user.op == "lstm" and user.execution is Execution.DYNAMIC


def _is_transposed(plan: QuantPlan, point: Point) -> bool:
    """Whether a weight stands [in, out] in the file, as the kernel of its layer takes it."""
    user = plan.decision(point.edges[0].user)
    return (
        user is not None
        and user.op == "linear"
        and user.execution in (Execution.DYNAMIC, Execution.WEIGHTS)
    )


def remove_quantization(path: str | Path) -> onnx.ModelProto:
    """A QDQ model without its roundings: float arithmetic on the weights as they were rounded.

    What stands in for the float model where only the quantized file is at hand.

    Raises:
        VerificationError: the file is no QDQ model.
        KernelError: scales of a weight do not fit it.
    """
    file = OnnxModel.of(path)
    graph, ends = QdqGraph(file), ("QuantizeLinear", "DequantizeLinear")
    rounded = [n for n in file.nodes if n.op_type in ends]
    if not any(n.op_type == ends[0] for n in rounded):
        raise VerificationError(
            f"{path} holds no QuantizeLinear nodes to take out; give its float model with --model"
        )
    for node in rounded:
        if len(node.inputs) < 2 or not node.outputs:
            raise VerificationError(f"the file is no graph: {node.name} lacks inputs or outputs")
        made, source = node.outputs[0], node.inputs[0]
        codes = graph.codes(made)
        if codes is not None and codes.constant is not None:
            real = codes.dequantize().numpy()
            source = ir.Value(name=f"{made.name}/float", const_value=ir.Tensor(real))
            file.model.graph.register_initializer(source)
        if source is None or source is made:
            raise VerificationError(f"the file is no graph: '{made.name}' is made from itself")
        _replace_value(made, source)
    RemoveUnusedNodesPass()(file.model)
    return ir.to_proto(file.model)


def _replace_value(made: ir.Value, source: ir.Value) -> None:
    """What reads one tensor reads another; an output keeps its name."""
    graph = made.graph
    assert isinstance(graph, ir.Graph)
    if made.is_graph_output():
        node = ir.Node("", "Identity", [source], name=f"{made.name}/Identity")
        output = node.outputs[0]
        output.name, output.type, output.shape = made.name, made.type, made.shape
        made.name = f"{made.name}/rounded"
        graph.append(node)
        for i, each in enumerate(graph.outputs):
            if each is made:
                graph.outputs[i] = output
    made.replace_all_uses_with(source)


def try_restore(path: str | Path, captured: Captured, sample: Batch) -> Quantized | str:
    """`restore`, or in a sentence why it cannot be done."""
    try:
        return restore(path, captured, sample)
    except QtoolError as error:
        return str(error)
