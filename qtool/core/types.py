"""Integer types, quantization parameters and specs of points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
Bounds = tuple[float | None, float | None]  # lowest and highest value; None: unbounded
Progress = Callable[[Iterable[Any]], Iterable[Any]]  # wraps an iterable to show progress


@dataclass(frozen=True)
class QType:
    """An integer type and its range of codes.

    Attributes:
        name: unique.
        qmin: lowest code.
        qmax: highest code.
        torch_dtype: type that stores the codes.
    """

    name: str
    qmin: int
    qmax: int
    torch_dtype: torch.dtype

    @property
    def levels(self) -> int:
        """Number of steps between the lowest and the highest code."""
        return self.qmax - self.qmin

    @property
    def bits(self) -> int:
        return self.levels.bit_length()

    @property
    def signed(self) -> bool:
        return self.qmin < 0

    def codes(self, x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
        """clamp(rint(x / scale) + zero_point), halves to even: codes, as floats in x's dtype.

        The formula of ONNX QuantizeLinear, used everywhere except in kernels whose runtimes round
        differently. float32 cannot represent every int32 code.
        """
        return self.unbounded(x, scale, zero_point).clamp_(self.qmin, self.qmax)

    @staticmethod
    def unbounded(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
        """`codes` without the clamp."""
        return torch.div(x, scale).round_().add_(zero_point)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(str(self.torch_dtype).removeprefix("torch."))

    def __str__(self) -> str:
        return self.name


UINT8 = QType("uint8", 0, 255, torch.uint8)
UINT4 = QType("uint4", 0, 15, torch.uint8)  # held in bytes, packed in files
UINT2 = QType("uint2", 0, 3, torch.uint8)  # likewise
INT8 = QType("int8", -128, 127, torch.int8)
INT8_NARROW = QType("int8_narrow", -127, 127, torch.int8)  # symmetric weights
INT4 = QType("int4", -8, 7, torch.int8)  # in the bytes of int8 kernels, too
INT2 = QType("int2", -2, 1, torch.int8)
UINT16 = QType("uint16", 0, 2**16 - 1, torch.uint16)
INT16 = QType("int16", -(2**15), 2**15 - 1, torch.int16)
INT32 = QType("int32", -(2**31), 2**31 - 1, torch.int32)

_BY_DTYPE = {t.torch_dtype: t for t in (UINT8, INT8, UINT16, INT16, INT32)}


def storage_qtype(dtype: torch.dtype) -> QType:
    """Return the integer type that uses all codes of a torch dtype."""
    return _BY_DTYPE[dtype]


@dataclass(frozen=True, eq=False)
class QuantParams:
    """Affine quantization of one tensor: real = (code - zero_point) * scale.

    Attributes:
        qtype: type of the codes.
        scale: float32; positive, finite and normal. Rank 0 (per tensor), rank 1 (per channel), or,
            with `block`, of the tensor's rank.
        zero_point: int64, of the shape of `scale`.
        axis: of the channels; None: per tensor.
        block: number of values along `axis` that share a scale; the last block may be shorter.
    """

    qtype: QType
    scale: torch.Tensor
    zero_point: torch.Tensor
    axis: int | None = None
    block: int | None = None

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
        return self.qtype.codes(x, scale, zero).to(self.qtype.torch_dtype)

    def round_trip(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values after quantization and dequantization, float32."""
        return self.dequantize(self.quantize(x))

    def dequantize(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes -> float32: f32(code - zero_point) * scale, as ONNX DequantizeLinear."""
        exact = torch.float32 if self.qtype.bits <= 16 else torch.int64  # holds the difference
        zero = self.along(self.zero_point.to(exact), codes.shape)
        return (codes.to(exact) - zero).to(torch.float32).mul_(self.along(self.scale, codes.shape))


@dataclass(frozen=True)
class ObserverSpec:
    """The observer of a tensor.

    Attributes:
        name: in the registry.
        options: (name, JSON value).
    """

    name: str
    options: tuple[tuple[str, float | int | str | bool], ...] = field(default=())

    def __str__(self) -> str:
        return self.name + "".join(f" {k}={v}" for k, v in self.options)


@dataclass(frozen=True)
class Observed:
    """Parameters computed from the statistics of an observer.

    Attributes:
        qtype: type of the codes.
        observer: collects the statistics.
        axis: of the channels; None: per tensor.
        symmetric: zero point 0.
        block: see QuantParams.
    """

    qtype: QType
    observer: ObserverSpec
    axis: int | None = None
    symmetric: bool = False
    block: int | None = None


@dataclass(frozen=True)
class Dynamic:
    """Parameters computed at run time from the range of the tensor.

    Attributes:
        qtype: type of the codes.
        per_row: from the range of each row along the last axis.
    """

    qtype: QType
    per_row: bool = False


@dataclass(frozen=True)
class Fixed:
    """Parameters that the operator determines (a softmax output, for instance)."""

    params: QuantParams


@dataclass(frozen=True)
class SharedWith:
    """The codes of another point, with its parameters and the scale times `factor`."""

    point: str
    factor: float = 1.0


@dataclass(frozen=True)
class Requantized:
    """The tensor of another point in another type: rounded twice, since the tensor exists only in
    the codes of that point."""

    point: str
    qtype: QType


@dataclass(frozen=True)
class Derived:
    """A bias: int32 with scale = scale(input) * scale(weight), zero point 0."""

    input: str
    weight: str


@dataclass(frozen=True)
class Float:
    """A tensor that stays in float, with the reason."""

    reason: str


@dataclass(frozen=True, eq=False)
class Change:
    """What a step of the conversion changed in the model, so that it can be repeated without
    calibration.

    Attributes:
        step: its name.
        count: how often it applied.
        reason: its purpose, for people.
        arrays: name of a tensor or layer -> float32 array of any shape. Changed weights need not be
            here: a file has their codes.
    """

    step: str
    count: int
    reason: str
    arrays: Mapping[str, torch.Tensor] = field(default_factory=dict)


Spec = Observed | Dynamic | Fixed | SharedWith | Requantized | Derived | Float
