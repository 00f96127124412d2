"""The quantized model behind an exported file, given the float model it was made from; and the
float model behind a file, where there is nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from qtool import graph as G
from qtool.data import Batch
from qtool.errors import FileError, QtoolError, VerificationError
from qtool.graph import FloatGraph
from qtool.integer.qdq import QdqGraph
from qtool.plan import Execution, Kind, Point, QuantPlan
from qtool.points import points_of
from qtool.quantized import QuantizedModel
from qtool.recovery.solve import Parameters
from qtool.types import INT32, Derived, Fixed, Observed, QuantParams

__all__ = ["float_twin", "is_quantized", "read_onnx", "restore", "restored"]


def read_onnx(path: str | Path) -> onnx.ModelProto:
    """Raises FileError unless the file is an ONNX model."""
    if not Path(path).is_file():
        raise FileError(f"{path}: no such file")
    try:
        model = onnx.load(path)
    except Exception as error:
        raise FileError(f"{path}: not a readable ONNX file ({error})") from error
    if not model.graph.node and not model.graph.output:
        raise FileError(f"{path}: not an ONNX model, or an empty one")
    return model


def is_quantized(path: str | Path) -> bool:
    """Whether any tensor of a file is in codes."""
    marks = ("QuantizeLinear", "QLinear", "Integer")
    return any(mark in n.op_type for n in read_onnx(path).graph.node for mark in marks)


def restore(
    path: str | Path,
    graph: FloatGraph,
    plan: QuantPlan,
    sample: Batch,
    reference: FloatGraph | None = None,
) -> QuantizedModel:
    """The quantized model that `path` was exported from: its parameters, and its weights where
    they were changed on the way (by a correction, or training).

    Args:
        graph, plan: the float model, captured and smoothed as the file's metadata says, and its
            plan for the target of the file.
        reference: the float graph before that.

    Raises:
        VerificationError: the file was not made by qtool, or from another plan.
    """
    model = read_onnx(path)
    metadata = {p.key: p.value for p in model.metadata_props}
    if "qtool_nodes" not in metadata:
        raise VerificationError(f"{path} was not made by qtool")
    made = {(r["node"], r["op"], r["form"]) for r in json.loads(metadata["qtool_nodes"])}
    known = [d for d in plan.nodes if d.execution is not Execution.SHAPE]
    if made != {(d.node, d.op, d.execution.value) for d in known}:
        raise VerificationError(f"{path} was made from another model, or with other options")
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    readers = {n.name: n for n in model.graph.node if n.op_type == "DequantizeLinear"}
    params = {p.name: _params(p, plan, readers, arrays) for p in plan if p.edges}
    found = QuantizedModel(graph, plan, Parameters(params), sample, reference)
    _take_weights(found, readers, arrays)
    return found


def _params(
    point: Point, plan: QuantPlan, readers: dict[str, onnx.NodeProto], arrays: dict[str, Any]
) -> QuantParams:
    root = plan.point(plan.root(point.name))
    if isinstance(root.spec, Fixed):
        return root.spec.params
    if f"{point.name}.codes" in arrays and f"{point.name}.dequantize" not in readers:
        return _of_rows(point, arrays)
    node = readers.get(f"{point.name}.dequantize") or readers.get(f"{root.name}.dequantize")
    if node is None or any(name not in arrays for name in node.input[1:3]):
        raise VerificationError(f"the file holds no parameters of '{point.name}'")
    scale, zero = (arrays[name] for name in node.input[1:3])
    qtype, axis = INT32, 0
    if isinstance(root.spec, Observed):
        qtype, axis = root.spec.qtype, root.spec.axis  # type: ignore[assignment]  # None: per tensor
    assert isinstance(root.spec, Observed | Derived)
    return QuantParams(
        qtype,
        torch.from_numpy(scale.astype(np.float32)),
        torch.from_numpy(zero.astype(np.int64)),
        axis if scale.ndim else None,
    )


def _of_rows(point: Point, arrays: dict[str, Any]) -> QuantParams:
    """Of a table whose rows are looked up as codes: there is no DequantizeLinear."""
    scale = arrays.get(f"{point.name}.scale")
    if not isinstance(point.spec, Observed) or scale is None:
        raise VerificationError(f"the file holds no parameters of '{point.name}'")
    scales = torch.from_numpy(scale.astype(np.float32))
    zeros = torch.zeros(scales.shape, dtype=torch.int64)
    return QuantParams(point.spec.qtype, scales, zeros, point.spec.axis)


def _take_weights(
    model: QuantizedModel, readers: dict[str, onnx.NodeProto], arrays: dict[str, Any]
) -> None:
    """Weights that do not round to the file's codes are replaced by what the codes mean."""
    nodes = {G.name_of(n): n for n in model.module.graph.nodes}
    points = points_of(model.module)
    for point in model.plan:
        node = readers.get(f"{point.name}.dequantize")
        codes = arrays.get(f"{point.name}.codes" if node is None else node.input[0])
        if point.kind is Kind.ACTIVATION or codes is None or point.name not in points:
            continue
        params = model.parameters[point.name]
        tensor = G.tensor(model.module, nodes[point.edges[0].source])
        stored = torch.from_numpy(codes.copy())
        with torch.no_grad():
            if not torch.equal(params.quantize(tensor.detach()), stored):
                tensor.copy_(params.dequantize(stored))


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
        while name in aliases:
            name = aliases[name]
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


def restored(
    path: str | Path,
    graph: FloatGraph,
    plan: QuantPlan,
    sample: Batch,
    reference: FloatGraph | None = None,
) -> QuantizedModel | str:
    """`restore`, or in a sentence why it cannot be done."""
    try:
        return restore(path, graph, plan, sample, reference)
    except QtoolError as error:
        return str(error)
