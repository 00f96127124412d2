"""The quantized model behind an exported file, given the float model it was made from; and the
float model behind a file, where there is nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from qtool import graph as G
from qtool.conversion import Captured, Conversion, Parameters, replay
from qtool.data import Batch
from qtool.errors import FileError, PlanError, QtoolError, VerificationError
from qtool.graph import torch_ops
from qtool.integer.qdq import QdqGraph
from qtool.onnx_graph import names
from qtool.onnx_graph.file_info import FileInfo
from qtool.onnx_graph.storage import load
from qtool.plan import Execution, Kind, Point, QuantPlan
from qtool.points import points_of
from qtool.quantized import Quantized
from qtool.recovery import STEPS
from qtool.types import INT32, Derived, Dynamic, Fixed, Observed, QuantParams, Requantized

__all__ = ["float_twin", "is_quantized", "read_onnx", "restore", "restored"]


def read_onnx(path: str | Path) -> onnx.ModelProto:
    """Raises FileError unless the file is an ONNX model."""
    if not Path(path).is_file():
        raise FileError(f"{path}: no such file")
    model = load(path)
    if not model.graph.node and not model.graph.output:
        raise FileError(f"{path}: not an ONNX model, or an empty one")
    return model


def is_quantized(path: str | Path) -> bool:
    """Whether any tensor of a file is in codes."""
    marks = ("QuantizeLinear", "QLinear", "Integer")
    return any(mark in n.op_type for n in read_onnx(path).graph.node for mark in marks)


def restore(path: str | Path, captured: Captured, sample: Batch) -> Quantized:
    """The quantized model that `path` was exported from: planned again from what the file says of
    itself, with its parameters, and its weights where they were changed on the way (by a step of
    the conversion, or training).

    Args:
        captured: the float model.
        sample: a batch of its inputs.

    Raises:
        VerificationError: the file was not made by qtool, or from another model.
    """
    model = read_onnx(path)
    info = FileInfo.of(model)
    if info is None:
        raise VerificationError(f"{path} was not made by qtool")
    try:
        plan = captured.plan(info.target, info.observer, info.recipe)
    except PlanError as error:
        raise VerificationError(f"{path} does not fit this model: {error}") from error
    work = replay(STEPS, Conversion.start(captured, plan), info.changes)
    made = {(n.node, n.op, n.form) for n in info.nodes}
    if made != {
        (d.node, d.op, d.execution.value)
        for d in work.plan.nodes
        if d.execution is not Execution.SHAPE
    }:
        raise VerificationError(f"{path} was made from another model, or with other options")
    stored = _Stored(model)
    params = {
        p.name: _params(p, work.plan, stored)
        for p in work.plan.placed
        if not isinstance(p.spec, Dynamic)
    }
    found = Quantized(replace(work, parameters=Parameters(params)), work.graph.bind(sample))
    _take_weights(found, stored)
    return found


class _Stored:
    """What a file holds of each point: arrays, by the names that export gives them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
        self.readers = {n.name: n for n in model.graph.node if n.op_type == "DequantizeLinear"}

    def parameters(self, point: str, root: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale (float32) and zero point (int64), in the shapes that they are stored in.

        Raises:
            VerificationError: there are none.
        """
        node = self.readers.get(names.dequantize(point)) or self.readers.get(names.dequantize(root))
        own = (names.scale(point), names.zero_point(point))
        read = own if node is None else node.input[1:3]
        scale = self.arrays.get(read[0]) if read else None
        if scale is None:
            raise VerificationError(f"the file holds no parameters of '{point}'")
        zero = self.arrays.get(read[1]) if len(read) > 1 else None
        zero = np.zeros(scale.shape, np.int64) if zero is None else zero
        return torch.from_numpy(scale.astype(np.float32)), torch.from_numpy(zero.astype(np.int64))

    def codes(self, point: str) -> torch.Tensor | None:
        node = self.readers.get(names.dequantize(point))
        found = self.arrays.get(names.codes(point) if node is None else node.input[0])
        return None if found is None else torch.from_numpy(found.copy())


def _params(point: Point, plan: QuantPlan, stored: _Stored) -> QuantParams:
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
    if spec.block is not None:
        zero = torch_ops.unpack_4bit(zero.to(torch.uint8), scale.shape[-1]).to(torch.int64)
        zero += spec.qtype.qmin
        return QuantParams(spec.qtype, scale, zero.reshape(scale.shape), spec.axis, spec.block)
    return QuantParams(spec.qtype, scale, zero, spec.axis if scale.dim() else None)


def _take_weights(model: Quantized, stored: _Stored) -> None:
    """Weights that do not round to the file's codes are replaced by what the codes mean."""
    nodes = {G.name_of(n): n for n in model.module.graph.nodes}
    points = points_of(model.module)
    for point in model.plan:
        codes = stored.codes(point.name)
        if point.kind is Kind.ACTIVATION or codes is None or point.name not in points:
            continue
        params = model.parameters[point.name]
        tensor = G.tensor(model.module, nodes[point.edges[0].source])
        if params.block is not None:
            codes = torch_ops.unpack_4bit(codes.flatten(1), tensor.shape[-1])
            codes = codes.to(params.qtype.torch_dtype) + params.qtype.qmin
        elif _turned(model.plan, point):
            codes = codes.t()
        with torch.no_grad():
            if not torch.equal(params.quantize(tensor.detach()), codes):
                tensor.copy_(params.dequantize(codes))


def _turned(plan: QuantPlan, point: Point) -> bool:
    """Whether a weight stands [in, out] in the file, as the kernel of its layer takes it."""
    user = plan.decision(point.edges[0].user)
    return (
        user is not None
        and user.op == "linear"
        and user.execution in (Execution.DYNAMIC, Execution.WEIGHTS)
    )


def float_twin(path: str | Path) -> onnx.ModelProto:
    """A QDQ model without its roundings: float arithmetic on the weights as they were rounded.

    What stands in for the float model where only the quantized file is at hand.

    Raises:
        VerificationError: the file is no QDQ model.
    """
    model = read_onnx(path)
    graph = QdqGraph(model)
    aliases: dict[str, str] = {}
    kept, constants = [], {}
    for node in graph.nodes:
        if node.op_type == "QuantizeLinear":
            aliases[node.output[0]] = node.input[0]
        elif node.op_type == "DequantizeLinear":
            codes = graph.codes(node.output[0])
            assert codes is not None
            if codes.constant is not None:
                constants[node.output[0]] = codes.params.dequantize(codes.constant).numpy()
            else:
                aliases[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    if len(kept) == len(graph.nodes):
        raise VerificationError(
            f"{path} holds no QuantizeLinear nodes to take out; give its float model with --model"
        )
    return _rewired(model, kept, aliases, constants)


def _rewired(
    model: onnx.ModelProto, kept: list[Any], aliases: dict[str, str], constants: dict[str, Any]
) -> onnx.ModelProto:
    def source(name: str) -> str:
        met = {name}
        while name in aliases:
            name = aliases[name]
            if name in met:
                raise VerificationError(f"the file is no graph: '{name}' is made from itself")
            met.add(name)
        return name

    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.graph.value_info[:]
    for node in kept:
        new = result.graph.node.add()
        new.CopyFrom(node)
        new.input[:] = [source(n) for n in node.input]
    for output in result.graph.output:
        if output.name in aliases:
            new = result.graph.node.add(op_type="Identity", name=f"{output.name}/Identity")
            new.input.append(source(output.name))
            new.output.append(output.name)
    read = {n for node in result.graph.node for n in node.input}
    old = [i for i in result.graph.initializer if i.name in read]
    del result.graph.initializer[:]
    result.graph.initializer.extend(old)
    result.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(v), k)
        for k, v in constants.items()
        if k in read
    )
    return result


def restored(path: str | Path, captured: Captured, sample: Batch) -> Quantized | str:
    """`restore`, or in a sentence why it cannot be done."""
    try:
        return restore(path, captured, sample)
    except QtoolError as error:
        return str(error)
