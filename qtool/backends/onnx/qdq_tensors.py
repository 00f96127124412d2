"""Quantization in an ONNX graph, read without torch: what the codes of its tensors mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.reading import OnnxModel, array_of, input_at, is_constant
from qtool.core.affine import Affine
from qtool.core.errors import KernelError
from qtool.core.types import INT8, INT32, UINT8, Array, QType

_QTYPES: Mapping[str, QType] = {"uint8": UINT8, "int8": INT8, "int32": INT32}


@dataclass(frozen=True, eq=False)
class QdqTensors:
    """The quantized tensors of a model.

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

    def affine(self, node: Node) -> Affine:
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
            axis = int(node.attributes.get("axis", 1))
        shape = (-1,) if axis is not None else ()
        shift, stored_type = 0, qtype
        if self.signed and qtype is UINT8:
            shift, stored_type = -128, INT8
        elif self.is_held_as_uint8(node):
            shift, stored_type = 128, UINT8
        zeros = zero.astype(np.int64).reshape(shape) + shift
        return Affine(stored_type, scale.astype(np.float32).reshape(shape), np.asarray(zeros), axis)

    def is_held_as_uint8(self, node: Node) -> bool:
        """Return whether the int8 codes of a Quantize- or DequantizeLinear are read as uint8."""
        return self.int8_as_uint8 and self.becomes_uint8(node)

    def becomes_uint8(self, node: Node) -> bool:
        """Return whether ONNX Runtime on x86 converts a pair of int8 Q and DQ to uint8.

        It does where there is one of each and one operator reads the result.
        """
        codes = node.outputs[0] if node.op_type == "QuantizeLinear" else input_at(node, 0)
        producer = None if codes is None else codes.producer
        if codes is None or producer is None or producer.op_type != "QuantizeLinear":
            return False
        source, zero = input_at(producer, 0), array_of(input_at(producer, 2))
        if source is None or is_constant(source) or zero is None or zero.dtype != np.int8:
            return False
        if codes.is_output or len(codes.uses) != 1 or len(self.quantizers(source)) > 1:
            return False
        (use,) = codes.uses
        real = use.node.outputs[0]
        return use.node.op_type == "DequantizeLinear" and (len(real.uses) + real.is_output == 1)

    def quantizers(self, value: Value) -> list[Node]:
        """Return the QuantizeLinear nodes that read a tensor; nothing where other nodes read it.

        Several have to return equal codes: the runtime merges them.
        """
        readers = self.model.readers(value)
        if value.is_output or any(r.op_type != "QuantizeLinear" for r in readers):
            return []
        params = [[array_of(input_at(r, i)) for i in (1, 2)] for r in readers]
        equal = all(_equal(a, b) for each in params for a, b in zip(each, params[0], strict=True))
        return readers if equal else []


def _equal(a: Array | None, b: Array | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and np.array_equal(a, b)
