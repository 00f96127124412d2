"""Quantization parameters and codes of torch tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qtool.core.affine import Affine
from qtool.core.types import INT8, INT16, INT32, UINT8, UINT16, Fixed, QType

_BY_DTYPE = {getattr(torch, t.dtype): t for t in (UINT8, INT8, UINT16, INT16, INT32)}


def torch_dtype(qtype: QType) -> torch.dtype:
    """Return torch's type that stores the codes."""
    dtype: torch.dtype = getattr(torch, qtype.dtype)
    return dtype


def storage_qtype(dtype: torch.dtype) -> QType:
    """Return the integer type that uses all codes of a torch dtype."""
    return _BY_DTYPE[dtype]


def affine_codes(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, qtype: QType
) -> torch.Tensor:
    """clamp(rint(x / scale) + zero_point), halves to even: codes, as floats in x's dtype.

    The formula of ONNX QuantizeLinear, used everywhere except in kernels whose runtimes round
    differently. float32 cannot represent every int32 code.
    """
    return unbounded_codes(x, scale, zero_point).clamp_(qtype.qmin, qtype.qmax)


def unbounded_codes(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
    """`affine_codes` without the clamp."""
    return torch.div(x, scale).round_().add_(zero_point)


ROUNDED = 0.51
"""Steps beyond the outermost codes that are no saturation: what rounding costs anywhere.

The ends of a range lie half a step beyond them where the zero point was rounded; the hundredth is
for the rounding of the scale.
"""


@dataclass(frozen=True, eq=False)
class QuantParams:
    """Affine quantization of one tensor: real = (code - zero_point) * scale.

    Attributes:
        qtype: type of the codes.
        scale: float32; positive, finite and normal. Rank 0 (per tensor), rank 1 (per channel), or,
            with `block`, of the tensor's rank.
        zero_point: int64, of the shape of `scale`.
        axis: dimension of the channels; None: per tensor.
        block: number of values along `axis` that share a scale; the last block may be shorter.
    """

    qtype: QType
    scale: torch.Tensor
    zero_point: torch.Tensor
    axis: int | None = None
    block: int | None = None

    @classmethod
    def of(cls, affine: Affine) -> QuantParams:
        """Return the parameters of arrays as tensors."""
        scale, zero = map(torch.from_numpy, (affine.scale, affine.zero_point))
        return cls(affine.qtype, scale, zero, affine.axis)

    def along(self, t: torch.Tensor, sizes: torch.Size) -> torch.Tensor:
        """Return scales or zero points in a shape that broadcasts over a tensor of these sizes."""
        if self.axis is None:
            return t
        if self.block is not None:
            spread = t.repeat_interleave(self.block, self.axis)
            return spread.narrow(self.axis, 0, sizes[self.axis])
        shape = [1] * len(sizes)
        shape[self.axis] = -1
        return t.reshape(shape)

    def quantize(self, x: torch.Tensor) -> torch.Tensor:
        """Real values -> codes in `qtype`'s dtype: clamp(rint(x / scale) + zero_point).

        A float32 division and round half to even, as ONNX QuantizeLinear; int32 (biases) in
        float64, which holds every int32 exactly.
        """
        if self.qtype is INT32:
            x = x.double()
        scale, zero = (self.along(t.to(x.dtype), x.shape) for t in (self.scale, self.zero_point))
        return affine_codes(x, scale, zero, self.qtype).to(torch_dtype(self.qtype))

    def round_trip(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values after quantization and dequantization, float32."""
        return self.dequantize(self.quantize(x))

    def dequantize(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes -> float32: f32(code - zero_point) * scale, as ONNX DequantizeLinear."""
        exact = torch.float32 if self.qtype.bits <= 16 else torch.int64  # holds the difference
        zero = self.along(self.zero_point.to(exact), codes.shape)
        return (codes.to(exact) - zero).to(torch.float32).mul_(self.along(self.scale, codes.shape))


def fixed_params(spec: Fixed) -> QuantParams:
    """Return the parameters that an operator determines."""
    scale = torch.tensor(spec.scale, dtype=torch.float32)
    return QuantParams(spec.qtype, scale, torch.tensor(spec.zero_point))
