"""A layer as a product of matrices: its inputs as rows, its weights as a matrix for each group.

A convolution reads a patch at each of its positions; rows are patches at some of them, always the
same ones for the same sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import fx
from torch.nn import functional as F

from qtool import graph as G
from qtool.graph import torch_ops

__all__ = ["as_matrix", "as_weight", "groups_of", "is_product", "rows_of"]

aten = torch.ops.aten


def is_product(node: fx.Node) -> bool:
    """Whether a node is a layer that this module knows: a convolution or a linear layer."""
    return node.target in (torch_ops.conv, aten.linear.default)


def groups_of(node: fx.Node) -> int:
    return int(node.args[6]) if node.target is torch_ops.conv else 1  # type: ignore[arg-type]  # a number


def as_matrix(node: fx.Node, weight: torch.Tensor) -> torch.Tensor:
    """Weights [out, in / groups, ...] as [groups, out / groups, inputs of a position]."""
    matrix: torch.Tensor = weight.flatten(1).unflatten(0, (groups_of(node), -1))
    return matrix


def as_weight(matrix: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The inverse of `as_matrix`."""
    return matrix.flatten(0, 1).reshape(shape)


def rows_of(node: fx.Node, x: torch.Tensor, most: int) -> torch.Tensor:
    """Inputs of a layer as rows: [groups, at most `most`, inputs of a position].

    Args:
        x: what the layer reads, a whole batch.
    """
    if node.target is aten.linear.default:
        flat = x.reshape(-1, x.shape[-1])
        return flat[_chosen(len(flat), most)].unsqueeze(0)
    stride, pads, dilation = (_sizes(node.args[i]) for i in (3, 4, 5))
    rank, groups = len(stride), groups_of(node)
    kernel = [G.hint(s) for s in G.shape(node.args[1])[2:]]  # type: ignore[arg-type]  # a node
    begin, end = pads[:rank], pads[rank:]
    x = F.pad(x, [w for pair in zip(reversed(begin), reversed(end), strict=True) for w in pair])
    for d in range(rank):
        span = (kernel[d] - 1) * dilation[d] + 1
        x = x.unfold(d + 2, span, stride[d])[..., :: dilation[d]]
    positions = (x.shape[0], *x.shape[2 : 2 + rank])  # x: [batch, in, *positions, *kernel]
    places = torch.unravel_index(_chosen(prod(positions), most), positions)
    patches = x.movedim(1, rank + 1)[places]  # [rows, in, *kernel]
    rows: torch.Tensor = patches.unflatten(1, (groups, -1)).movedim(1, 0).flatten(2)
    return rows


def _sizes(argument: object) -> list[int]:
    assert isinstance(argument, Sequence)
    return [int(size) for size in argument]


def _chosen(count: int, most: int) -> torch.Tensor:
    """Which of `count` places: all, or `most` of them drawn without looking at the values."""
    if count <= most:
        return torch.arange(count)
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most]
    return drawn.sort().values
