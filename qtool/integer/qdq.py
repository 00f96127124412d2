"""Quantization in an ONNX graph: what the codes of its tensors mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch

from qtool.errors import KernelError
from qtool.onnx_graph.reading import Reading, array_of, attributes_of, input_at
from qtool.types import INT8, INT32, UINT8, QType, QuantParams

__all__ = ["Codes", "QdqGraph"]

_QTYPES: Mapping[str, QType] = {"uint8": UINT8, "int8": INT8, "int32": INT32}


@dataclass(frozen=True, eq=False)
class Codes:
    """A quantized tensor: where it stands, what its codes mean, and the codes if they are
    constant."""

    value: ir.Value
    params: QuantParams
    constant: torch.Tensor | None = None

    @property
    def name(self) -> str:
        return str(self.value.name)


@dataclass(frozen=True, eq=False)
class QdqGraph:
    """What is quantized in a model that was read. `signed`: uint8 codes are read as int8 (minus
    128). Tensors of stored codes are views, which nobody writes into."""

    file: Reading
    signed: bool = False

    def params(self, node: ir.Node) -> QuantParams:
        """The parameters of a QuantizeLinear or DequantizeLinear node.

        Raises:
            KernelError: they are computed at run time, or of a type without kernels.
        """
        scale, zero = (array_of(input_at(node, i)) for i in (1, 2))
        if scale is None:
            raise KernelError(f"{node.name}: its scale is computed at run time")
        if zero is None:
            stored = array_of(input_at(node, 0))
            zero = np.zeros(scale.shape, np.uint8 if stored is None else stored.dtype)
        qtype = _QTYPES.get(str(zero.dtype))
        if qtype is None:
            raise KernelError(f"{node.name}: codes of type {zero.dtype} have no integer kernel")
        axis = None
        if scale.size > 1:
            axis = int(attributes_of(node).get("axis", 1))
        shape = (-1,) if axis is not None else ()
        shift = 128 if self.signed and qtype is UINT8 else 0
        return QuantParams(
            INT8 if shift else qtype,
            torch.from_numpy(scale.astype(np.float32).reshape(shape)),
            torch.from_numpy(zero.astype(np.int64).reshape(shape)) - shift,
            axis,
        )

    def codes(self, value: ir.Value | None) -> Codes | None:
        """The codes behind a float tensor, if it is made by a DequantizeLinear."""
        maker = None if value is None else value.producer()
        if maker is None or maker.op_type != "DequantizeLinear":
            return None
        source = maker.inputs[0]
        assert source is not None
        stored, constant = array_of(source), None
        if stored is not None:
            constant = torch.from_numpy(stored)
            if self.signed and stored.dtype == np.uint8:
                constant = (constant.to(torch.int16) - 128).to(torch.int8)
        return Codes(source, self.params(maker), constant)
