"""Quantization parameters and codes of arrays, for what reads and runs files without torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qtool.core.types import Array, QType


@dataclass(frozen=True, eq=False)
class Affine:
    """Affine quantization of one array: real = (code - zero_point) * scale.

    Attributes:
        qtype: type of the codes.
        scale: float32; rank 0 (per tensor) or rank 1 (per channel).
        zero_point: int64, of the shape of `scale`.
        axis: dimension of the channels; None: per tensor.
    """

    qtype: QType
    scale: Array
    zero_point: Array
    axis: int | None = None

    def quantize(self, x: Array) -> Array:
        """Real values -> codes: clamp(rint(x / scale) + zero_point), halves to even."""
        scale, zero = (
            self._along(a.astype(x.dtype), x.ndim) for a in (self.scale, self.zero_point)
        )
        codes = np.clip(np.rint(x / scale) + zero, self.qtype.qmin, self.qtype.qmax)
        result: Array = codes.astype(self.qtype.numpy_dtype)
        return result

    def dequantize(self, codes: Array) -> Array:
        """Codes -> float32: f32(code - zero_point) * scale, as ONNX DequantizeLinear."""
        exact = np.float32 if self.qtype.bits <= 16 else np.int64  # holds the difference
        zero = self._along(self.zero_point.astype(exact), codes.ndim)
        offset = (codes.astype(exact) - zero).astype(np.float32)
        return offset * self._along(self.scale, codes.ndim)

    def _along(self, array: Array, rank: int) -> Array:
        """Return scales or zero points in a shape that broadcasts over an array of this rank."""
        if self.axis is None:
            return array
        return array.reshape([-1 if d == self.axis else 1 for d in range(rank)])
