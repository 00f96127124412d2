"""Integer types, quantization parameters and specs of points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
        dtype: name of the type that stores the codes.
    """

    name: str
    qmin: int
    qmax: int
    dtype: str

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

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    def __str__(self) -> str:
        return self.name


UINT8 = QType("uint8", 0, 255, "uint8")
UINT4 = QType("uint4", 0, 15, "uint8")  # held in bytes, packed in files
UINT2 = QType("uint2", 0, 3, "uint8")  # likewise
INT8 = QType("int8", -128, 127, "int8")
INT8_NARROW = QType("int8_narrow", -127, 127, "int8")  # symmetric weights
INT4 = QType("int4", -8, 7, "int8")  # in the bytes of int8 kernels, too
INT2 = QType("int2", -2, 1, "int8")
UINT16 = QType("uint16", 0, 2**16 - 1, "uint16")
INT16 = QType("int16", -(2**15), 2**15 - 1, "int16")
INT32 = QType("int32", -(2**31), 2**31 - 1, "int32")


@dataclass(frozen=True)
class ObserverSpec:
    """The observer of a tensor.

    Attributes:
        name: name in the registry.
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
        axis: dimension of the channels; None: per tensor.
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
        per_row: whether each row along the last axis has parameters of its own range.
    """

    qtype: QType
    per_row: bool = False


@dataclass(frozen=True)
class Fixed:
    """Parameters that the operator determines (a softmax output, for instance), per tensor."""

    qtype: QType
    scale: float
    zero_point: int = 0


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
        arrays: name of a tensor or layer -> float32 tensor of any shape, an array if it was read
            from a file. Changed weights need not be here: a file has their codes.
    """

    step: str
    count: int
    reason: str
    arrays: Mapping[str, Any] = field(default_factory=dict)


Spec = Observed | Dynamic | Fixed | SharedWith | Requantized | Derived | Float
