"""Quantization in an ONNX graph: the codes of its tensors for the integer engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.qdq_tensors import QdqTensors
from qtool.backends.onnx.reading import array_of, input_at
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A quantized tensor.

    Attributes:
        value: its codes in the graph.
        params: what the codes mean.
        constant: the codes, if they are constant.
        node: the DequantizeLinear that reads them.
    """

    value: Value
    params: QuantParams
    constant: torch.Tensor | None = None
    node: Node | None = None

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
        scale, attributes = array_of(input_at(self.node, 1)), self.node.attributes
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


class QdqGraph(QdqTensors):
    """The quantized tensors of a model for the engine. Stored codes are read-only views."""

    def params(self, node: Node) -> QuantParams:
        """Return `affine` as tensors."""
        return QuantParams.of(self.affine(node))

    def codes(self, value: Value | None) -> QuantizedTensor | None:
        """Return the codes behind a float tensor, if a DequantizeLinear produces it."""
        producer = None if value is None else value.producer
        if producer is None or producer.op_type != "DequantizeLinear":
            return None
        source = producer.inputs[0]
        assert source is not None
        return QuantizedTensor(source, self.params(producer), self._stored(source), producer)

    def _stored(self, codes: Value) -> torch.Tensor | None:
        """Return constant codes: stored, or quantized from a constant."""
        producer, array = codes.producer, array_of(codes)
        if array is not None:
            constant = torch.from_numpy(array)
            if self.signed and array.dtype == np.uint8:
                constant = (constant.to(torch.int16) - 128).to(torch.int8)
            return constant
        if producer is None or producer.op_type != "QuantizeLinear":
            return None
        real = array_of(input_at(producer, 0))
        return None if real is None else self.params(producer).quantize(torch.from_numpy(real))
