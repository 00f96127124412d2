"""Single-operator models for real ONNX Runtime sessions: the oracle of the kernel tests."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper

from qtool.core.quant_params import QuantParams
from qtool.core.types import QType

MS = "com.microsoft"
_FLOAT = TensorProto.FLOAT


def params(qtype: Any, scale: Any, zero: Any = 0, axis: int | None = None) -> QuantParams:
    """QuantParams from plain numbers or arrays."""
    scales = torch.tensor(np.asarray(scale, np.float32))
    zeros = torch.tensor(np.asarray(zero, np.int64)).expand(scales.shape).clone()
    return QuantParams(qtype, scales, zeros, axis)


def element_type(qtype: QType) -> int:
    """The type of ONNX that stores codes."""
    return int(helper.np_dtype_to_tensor_dtype(qtype.numpy_dtype))


@dataclass
class Model:
    """A graph under construction; every method returns the name of the tensor it made."""

    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)

    def const(self, array: Any) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def feed(self, array: Any) -> str:
        array = np.asarray(array)
        name = f"x{len(self.inputs)}"
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, element, array.shape))
        self.feeds[name] = array
        return name

    def node(self, op: str, inputs: list[str], domain: str = "", **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], domain=domain, **attrs))
        return name

    def qp(self, p: QuantParams) -> list[str]:
        """Scale and zero point as initializers."""
        zero = p.zero_point.numpy().astype(p.qtype.numpy_dtype)
        return [self.const(p.scale.numpy()), self.const(zero)]

    def dq(self, name: str, p: QuantParams) -> str:
        axis = {} if p.axis is None else {"axis": p.axis}
        return self.node("DequantizeLinear", [name, *self.qp(p)], **axis)

    def q(self, name: str, p: QuantParams) -> str:
        return self.node("QuantizeLinear", [name, *self.qp(p)])

    def run(self, output: str, element: int, level: Any = None) -> tuple[np.ndarray, list[str]]:
        """The value of `output`, and the operators of the graph ONNX Runtime made of it."""
        info = helper.make_tensor_value_info(output, element, None)
        graph = helper.make_graph(self.nodes, "g", self.inputs, [info], self.initializers)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MS, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        if level is not None:
            options.graph_optimization_level = level
        with TemporaryDirectory() as folder:
            path = Path(folder) / "m.onnx"
            options.optimized_model_filepath = str(path)
            session = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            ops = [n.op_type for n in onnx.load(path).graph.node]
        return session.run(None, self.feeds)[0], ops


def qdq(
    op: str,
    inputs: list[tuple[Any, QuantParams]],
    out: QuantParams | None,
    *,
    consts: list[tuple[Any, QuantParams]] | None = None,
    raw: list[Any] | None = None,
    domain: str = "",
    opset: int = 17,
    **attrs: Any,
) -> tuple[np.ndarray, list[str]]:
    """Codes -> DequantizeLinear -> op -> QuantizeLinear -> codes (or float without `out`)."""
    m = Model(opset)
    names = [m.dq(m.feed(codes), p) for codes, p in inputs]
    names += [m.dq(m.const(codes), p) for codes, p in consts or []]
    names += [m.const(array) for array in raw or []]
    result = m.node(op, names, domain, **attrs)
    if out is None:
        return m.run(result, _FLOAT)
    return m.run(m.q(result, out), element_type(out.qtype))
