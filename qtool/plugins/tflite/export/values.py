"""Values of the graph as tensors of the file, and the layouts that these have.

A convolution of TFLite takes images as [N, H, W, C], a graph of torch as [N, C, H, W]. `order` says
which axis of the graph each axis of a tensor holds: a permutation of the graph changes the order
only, and nothing moves until an operator needs another layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from qtool.core.quant_params import QuantParams
from qtool.core.types import UINT8

_PRIME = 10007  # no size of a network is a multiple

PIXELS = QuantParams(UINT8, torch.tensor(1.0), torch.tensor(0))
"""Parameters of bytes that are the numbers themselves: an input of uint8."""

Codes = QuantParams | None
"""Parameters of a result; None in float."""
Order = tuple[int, ...]
Sizes = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """A value that is computed.

    Attributes:
        index: index of its tensor.
        sizes: sizes of the graph's axes; 1 for the batch if that is dynamic.
        dynamic: whether each axis of the graph follows the batch.
        order: axis of the graph that each axis of the tensor holds.
        params: parameters of its codes; None for floats and other values.
        dtype: type of the elements without `params`.
        columns: order of the columns of an image flattened as it is laid out: the column of the
            graph that each column of the tensor holds; empty: the same.
    """

    index: int
    sizes: Sizes
    dynamic: tuple[bool, ...]
    order: Order
    params: QuantParams | None = None
    dtype: str = "float32"
    columns: tuple[int, ...] = ()

    @property
    def spread(self) -> Sizes:
        """The sizes of the graph's axes, with a prime in place of a dynamic batch."""
        return tuple(s * _PRIME if d else s for s, d in zip(self.sizes, self.dynamic, strict=True))

    @property
    def physical(self) -> Sizes:
        """The shape of the tensor."""
        return tuple(self.sizes[i] for i in self.order)

    def axis(self, axis: int) -> int:
        """Return the axis of the tensor that holds an axis of the graph."""
        return self.order.index(axis % len(self.order))

    def to_graph(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the tensor in the layout of the graph."""
        if self.columns:
            values = values[..., torch.tensor(self.columns).argsort()]
        return values.permute(*(self.axis(i) for i in range(len(self.order))))


@dataclass(frozen=True, eq=False)
class Stored:
    """A constant, in the layout of the graph.

    Attributes:
        name: name of the attribute, or of the codes.
        data: values or codes.
        params: parameters of codes.
        follows_batch: an axis has the size of the batch; the values are those of one sample.
    """

    name: str
    data: torch.Tensor
    params: QuantParams | None = None
    follows_batch: bool = False

    def real(self) -> torch.Tensor:
        """Return the values; those of codes dequantized."""
        return self.data if self.params is None else self.params.dequantize(self.data)

    def in_float(self) -> Stored:
        """Return the constant with its values instead of codes."""
        return Stored(self.name, self.real().detach())


@dataclass(frozen=True, eq=False)
class Parts:
    """A result that several tensors of codes hold together, see `linear`.

    Attributes:
        tensors: their indices; the code of the result is the sum of theirs, each from 0.
        params: parameters of that code.
    """

    tensors: tuple[int, ...]
    params: QuantParams


@dataclass(frozen=True)
class Layout:
    """The layouts of inputs and outputs.

    Attributes:
        channels_last: images are [N, H, W, C] at the interface.
        int8: inputs and outputs are codes where the graph quantizes them.
        one_sample: the batch is 1, and every size is fixed.
    """

    channels_last: bool = True
    int8: bool = False
    one_sample: bool = False


def identity(rank: int) -> Order:
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """Return the order of TFLite's images: channels behind the spatial axes."""
    return (0, *range(2, rank), 1)


def regroup(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the groups of axes that a reshape joins or splits: (axes before, axes after).

    Each group has the same number of elements on both sides. Axes of size 1 belong to the group in
    front of them, the first ones to the first group.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        left, right, a, b = [i], [j], before[i], after[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                left.append(i)
                a, i = a * before[i], i + 1
            else:
                right.append(j)
                b, j = b * after[j], j + 1
        while i < len(before) and before[i] == 1:
            left.append(i)
            i += 1
        while j < len(after) and after[j] == 1:
            right.append(j)
            j += 1
        groups.append((left, right))
    return groups


@dataclass
class Cache:
    """Copies of values that were made already.

    Attributes:
        floats: index of codes -> the dequantized value.
        orders: (index, order, other order) -> the value in that order. A tensor and a permutation
            of its axes have one index and two orders.
    """

    floats: dict[int, Value] = field(default_factory=dict)
    orders: dict[tuple[int, Order, Order], Value] = field(default_factory=dict)
