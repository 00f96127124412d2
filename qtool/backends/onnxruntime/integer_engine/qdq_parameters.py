"""Quantization in an ONNX graph: what the codes of its tensors mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch

from qtool.backends.onnx.reading import OnnxModel, array_of, attributes_of, input_at, is_constant
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8, INT32, UINT8, Array, QType

_QTYPES: Mapping[str, QType] = {"uint8": UINT8, "int8": INT8, "int32": INT32}


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A quantized tensor.

    Attributes:
        value: its codes in the graph.
        params: what the codes mean.
        constant: the codes, if they are constant.
        node: the DequantizeLinear that reads them.
    """

    value: ir.Value
    params: QuantParams
    constant: torch.Tensor | None = None
    node: ir.Node | None = None

    @property
    def name(self) -> str:
        return str(self.value.name)

    def dequantize(self) -> torch.Tensor:
        """Return the float32 values of constant codes: per tensor, per channel or in blocks.

        Raises:
            KernelError: the shape of the scales does not fit that of the codes.
        """
        assert self.constant is not None
        assert self.node is not None
        scale, attributes = array_of(input_at(self.node, 1)), attributes_of(self.node)
        axis, block = int(attributes.get("axis", 1)), int(attributes.get("block_size", 0))
        if scale is None or (scale.size == 1 and not block):
            return self.params.dequantize(self.constant)
        sizes = list(self.constant.shape)
        zeros = self.params.zero_point.numel()
        if (
            not -len(sizes) <= axis < len(sizes)
            or list(scale.shape) != _scale_sizes(sizes, axis, block)
            or zeros != scale.size
        ):
            raise KernelError(
                f"{self.node.name}: scales of the shape {list(scale.shape)} do not fit codes of "
                f"the shape {sizes} along axis {axis}"
            )
        if not block:
            return self.params.dequantize(self.constant)
        scales, shift = (
            t.reshape(scale.shape) for t in (self.params.scale, self.params.zero_point)
        )
        params = QuantParams(self.params.qtype, scales, shift, axis, block)
        return params.dequantize(self.constant)


def _scale_sizes(sizes: list[int], axis: int, block: int) -> list[int]:
    """Return the shape that ONNX requires of scales along an axis."""
    if not block:
        return [sizes[axis]]
    blocked = list(sizes)
    blocked[axis] = -(-sizes[axis] // block)
    return blocked


@dataclass(frozen=True, eq=False)
class QdqGraph:
    """The quantized tensors of a model. Stored codes are read-only views.

    Attributes:
        model: the model.
        signed: uint8 codes are read as int8 (minus 128).
        int8_as_uint8: int8 codes with one reader are read as uint8 (plus 128), as ONNX Runtime does
            on x86: its kernels add the zero point before they round.
        int8_kernels: the runtime computes on int8 codes with any number of readers, as on ARM.
    """

    model: OnnxModel
    signed: bool = False
    int8_as_uint8: bool = False
    int8_kernels: bool = False

    def params(self, node: ir.Node) -> QuantParams:
        """Return the parameters of a QuantizeLinear or DequantizeLinear node.

        Raises:
            KernelError: they are computed at run time, or of a type without kernels.
        """
        scale, zero = (array_of(input_at(node, i)) for i in (1, 2))
        if scale is None:
            raise KernelError(f"{node.name}: its scale is computed at run time")
        least = 0 if is_constant(input_at(node, 0)) else np.finfo(np.float32).smallest_subnormal
        invalid = scale[~(np.isfinite(scale) & (scale >= least))].reshape(-1)
        if invalid.size:  # weights of zeros alone may have 0
            raise KernelError(
                f"{node.name}: its scale is {invalid[0]}; a scale is a positive number"
            )
        if zero is None:
            codes = array_of(input_at(node, 0)) if node.op_type == "DequantizeLinear" else None
            zero = np.zeros(scale.shape, np.uint8 if codes is None else codes.dtype)
        qtype = _QTYPES.get(str(zero.dtype))
        if qtype is None:
            raise KernelError(f"{node.name}: codes of type {zero.dtype} have no integer kernel")
        axis = None
        if scale.size > 1:
            axis = int(attributes_of(node).get("axis", 1))
        shape = (-1,) if axis is not None else ()
        shift, stored_type = 0, qtype
        if self.signed and qtype is UINT8:
            shift, stored_type = -128, INT8
        elif self.is_held_as_uint8(node):
            shift, stored_type = 128, UINT8
        return QuantParams(
            stored_type,
            torch.from_numpy(scale.astype(np.float32).reshape(shape)),
            torch.from_numpy(zero.astype(np.int64).reshape(shape)) + shift,
            axis,
        )

    def is_held_as_uint8(self, node: ir.Node) -> bool:
        """Return whether the int8 codes of a Quantize- or DequantizeLinear are read as uint8."""
        return self.int8_as_uint8 and self.becomes_uint8(node)

    def becomes_uint8(self, node: ir.Node) -> bool:
        """Return whether ONNX Runtime on x86 converts a pair of int8 Q and DQ to uint8.

        It does where there is one of each and one operator reads the result.
        """
        codes = node.outputs[0] if node.op_type == "QuantizeLinear" else input_at(node, 0)
        producer = None if codes is None else codes.producer()
        if codes is None or producer is None or producer.op_type != "QuantizeLinear":
            return False
        source, zero = input_at(producer, 0), array_of(input_at(producer, 2))
        if source is None or is_constant(source) or zero is None or zero.dtype != np.int8:
            return False
        if codes.is_graph_output() or len(codes.uses()) != 1 or len(self.quantizers(source)) > 1:
            return False
        (use,) = codes.uses()
        real = use.node.outputs[0]
        return use.node.op_type == "DequantizeLinear" and (
            len(real.uses()) + real.is_graph_output() == 1
        )

    def quantizers(self, value: ir.Value) -> list[ir.Node]:
        """Return the QuantizeLinear nodes that read a tensor; nothing where other nodes read it.

        Several have to return equal codes: the runtime merges them.
        """
        readers = self.model.readers(value)
        if value.is_graph_output() or any(r.op_type != "QuantizeLinear" for r in readers):
            return []
        params = [[array_of(input_at(r, i)) for i in (1, 2)] for r in readers]
        equal = all(_equal(a, b) for each in params for a, b in zip(each, params[0], strict=True))
        return readers if equal else []

    def codes(self, value: ir.Value | None) -> QuantizedTensor | None:
        """Return the codes behind a float tensor, if a DequantizeLinear produces it."""
        producer = None if value is None else value.producer()
        if producer is None or producer.op_type != "DequantizeLinear":
            return None
        source = producer.inputs[0]
        assert source is not None
        return QuantizedTensor(source, self.params(producer), self._stored(source), producer)

    def _stored(self, codes: ir.Value) -> torch.Tensor | None:
        """Return constant codes: stored, or quantized from a constant."""
        producer, array = codes.producer(), array_of(codes)
        if array is not None:
            constant = torch.from_numpy(array)
            if self.signed and array.dtype == np.uint8:
                constant = (constant.to(torch.int16) - 128).to(torch.int8)
            return constant
        if producer is None or producer.op_type != "QuantizeLinear":
            return None
        real = array_of(input_at(producer, 0))
        return None if real is None else self.params(producer).quantize(torch.from_numpy(real))


def _equal(a: Array | None, b: Array | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and np.array_equal(a, b)
