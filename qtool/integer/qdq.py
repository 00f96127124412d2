"""A QDQ ONNX model, read: who makes and who reads each tensor, and what its codes mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from qtool.errors import KernelError
from qtool.graph.onnx_part import reads
from qtool.onnx_graph import names
from qtool.types import INT8, INT32, UINT8, QType, QuantParams

__all__ = ["Codes", "QdqGraph"]

_QTYPES: Mapping[str, QType] = {"uint8": UINT8, "int8": INT8, "int32": INT32}


@dataclass(frozen=True, eq=False)
class Codes:
    """A quantized tensor: its name, what its codes mean, and the codes if they are constant."""

    name: str
    params: QuantParams
    constant: torch.Tensor | None = None


def _constant_value(node: onnx.NodeProto) -> np.ndarray[Any, Any]:
    value = helper.get_attribute_value(node.attribute[0])
    if isinstance(value, onnx.TensorProto):
        return np.array(numpy_helper.to_array(value))
    dtype = np.float32 if "float" in node.attribute[0].name else np.int64
    return np.asarray(value, dtype)


class QdqGraph:
    """Look-ups in a model; changes nothing. `signed`: uint8 codes are read as int8 (minus 128).

    What is stored is read once, into `arrays`; tensors of it are views, which nobody writes into.
    """

    def __init__(self, model: onnx.ModelProto, signed: bool = False) -> None:
        self.model = model
        self.signed = signed
        self.nodes = list(model.graph.node)
        self.arrays = {i.name: np.array(numpy_helper.to_array(i)) for i in model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant":
                self.arrays[node.output[0]] = _constant_value(node)
        self.inputs = [i.name for i in model.graph.input if i.name not in self.arrays]
        self.outputs = [o.name for o in model.graph.output]
        self.makers = {o: n for n in self.nodes for o in n.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys((*node.input, *reads(node))):
                self.readers.setdefault(name, []).append(node)

    def attributes(self, node: onnx.NodeProto) -> dict[str, Any]:
        return {a.name: helper.get_attribute_value(a) for a in node.attribute}

    def constant(self, node: onnx.NodeProto, index: int) -> np.ndarray[Any, Any] | None:
        """A constant input of a node, or None where it has none there."""
        return self.arrays.get(node.input[index]) if len(node.input) > index else None

    def params(self, node: onnx.NodeProto) -> QuantParams:
        """The parameters of a QuantizeLinear or DequantizeLinear node.

        Raises:
            KernelError: they are computed at run time, or of a type without kernels.
        """
        scale, zero = self.constant(node, 1), self.constant(node, 2)
        if scale is None:
            raise KernelError(f"{node.name}: its scale is computed at run time")
        if zero is None:
            stored = self.arrays.get(node.input[0])
            zero = np.zeros(scale.shape, np.uint8 if stored is None else stored.dtype)
        qtype = _QTYPES.get(str(zero.dtype))
        if qtype is None:
            raise KernelError(f"{node.name}: codes of type {zero.dtype} have no integer kernel")
        axis = None
        if scale.size > 1:
            axis = int(self.attributes(node).get("axis", 1))
        shape = (-1,) if axis is not None else ()
        shift = 128 if self.signed and qtype is UINT8 else 0
        return QuantParams(
            INT8 if shift else qtype,
            torch.from_numpy(scale.astype(np.float32).reshape(shape)),
            torch.from_numpy(zero.astype(np.int64).reshape(shape)) - shift,
            axis,
        )

    def codes(self, name: str) -> Codes | None:
        """The codes behind a float tensor, if it is made by a DequantizeLinear."""
        maker = self.makers.get(name)
        if maker is None or maker.op_type != "DequantizeLinear":
            return None
        stored = self.arrays.get(maker.input[0])
        constant = None
        if stored is not None:
            constant = torch.from_numpy(stored)
            if self.signed and stored.dtype == np.uint8:
                constant = (constant.to(torch.int16) - 128).to(torch.int8)
        return Codes(maker.input[0], self.params(maker), constant)

    def only_reader(self, name: str) -> onnx.NodeProto | None:
        """The one node that reads a tensor, if it is one and the tensor is no output."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def label(self, name: str) -> str:
        """A tensor's name as the user knows it: qtool names the codes of t `t.quantize`."""
        return names.tensor_of(name)
