"""A layer as a product of matrices: its inputs as rows, its weights as a matrix for each group.

A convolution reads a patch at each of its positions; rows are patches at some of them, always the
same ones for the same sizes. A transposed convolution is treated as a convolution of the input with
interleaved zeros, with a flipped kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import prod
from operator import mul

import torch
from torch import fx
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.graph.torch_ops import groups_of

aten = torch.ops.aten


def is_product(node: fx.Node) -> bool:
    """Return whether a node is a convolution, a linear layer or a layer of experts."""
    return node.target in (torch_ops.conv, torch_ops.conv_transpose) or reads_features(node)


def is_of_experts(node: fx.Node) -> bool:
    """Return whether each row of a layer's input belongs to one of several experts."""
    return node.target is torch_ops.expert_linear


def reads_features(node: fx.Node) -> bool:
    """Return whether the last dimension of a layer's input and result has their channels."""
    return node.target in (aten.linear.default, torch_ops.expert_linear)


def has_bias(node: fx.Node) -> bool:
    """Return whether a convolution or linear layer has a bias."""
    without = node.target is torch_ops.expert_linear
    return not without and len(node.args) > 2 and isinstance(node.args[2], fx.Node)


def as_matrix(node: fx.Node, weight: torch.Tensor) -> torch.Tensor:
    """Return weights as [groups, out / groups, inputs of a position]."""
    if node.target is torch_ops.conv_transpose:  # [in, out / groups, ...]
        flipped = weight.flip(tuple(range(2, weight.dim())))
        parts: torch.Tensor = flipped.unflatten(0, (groups_of(node), -1))
        return parts.transpose(1, 2).flatten(2)
    matrix: torch.Tensor = weight.flatten(1).unflatten(0, (groups_of(node), -1))
    return matrix


def as_weight(node: fx.Node, matrix: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a matrix of `as_matrix` in the shape of the weight."""
    if node.target is torch_ops.conv_transpose:
        parts: torch.Tensor = matrix.unflatten(2, (-1, *shape[2:]))
        return parts.transpose(1, 2).flatten(0, 1).flip(tuple(range(2, len(shape))))
    return matrix.flatten(0, 1).reshape(shape)


def row_layout(node: fx.Node) -> Hashable:
    """Return a key that is equal for layers that read the same rows of a tensor."""
    if node.target is aten.linear.default:
        return ()
    if node.target is torch_ops.expert_linear:
        return node.target, G.name_of(G.source(node, 2))
    return (node.target, tuple(_kernel(node)), str(node.args[3:]))


def input_rows(
    node: fx.Node, x: torch.Tensor, limit: int, ids: torch.Tensor | None = None
) -> torch.Tensor:
    """Return inputs of a layer as rows: [groups, up to `limit`, inputs of a position].

    Args:
        x: the layer's input, a whole batch.
        ids: group of each row of x, -1 for none, where the layer has experts; groups with fewer
            rows are filled with zeros, which change no product of rows.
    """
    if ids is not None:
        return _by_expert(node, x, limit, ids)
    if node.target is aten.linear.default:
        flat = x.reshape(-1, x.shape[-1])
        return flat[_sample_positions(len(flat), limit)].unsqueeze(0)
    x, stride, dilation = _padded_input(node, x)
    patches = _patches(x, _kernel(node), stride, dilation, limit)
    rows: torch.Tensor = patches.unflatten(1, (groups_of(node), -1)).movedim(1, 0).flatten(2)
    return rows


def _by_expert(node: fx.Node, x: torch.Tensor, limit: int, ids: torch.Tensor) -> torch.Tensor:
    chosen = _sample_positions(len(x), limit).to(x.device)
    rows, ids = x[chosen], ids[chosen]
    parts = [rows[ids == expert] for expert in range(groups_of(node))]
    return pad_sequence(parts, batch_first=True)


def _patches(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    limit: int,
) -> torch.Tensor:
    """Return patches of a padded input: [up to `limit`, in, elements of the kernel].

    They are gathered by memory offset, since selecting from an unfolded tensor is slow: in lines
    of all channels, or by element where these are few and channels are not contiguous.
    """
    sizes, area = x.shape[2:], prod(kernel)
    spans = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    steps = zip(sizes, spans, stride, strict=True)
    positions = (len(x), *((size - span - 1) // step + 1 for size, span, step in steps))
    chosen = _sample_positions(prod(positions), limit)
    channels_last = x.movedim(1, -1)
    in_lines = channels_last.is_contiguous() or len(chosen) * area >= len(x) * prod(sizes)
    x = channels_last.contiguous() if in_lines else x.contiguous()
    strides = x.stride()[1:-1] if in_lines else x.stride()[2:]
    corner = _memory_offsets(positions, [x.stride(0), *map(mul, strides, stride)], chosen)
    within = _memory_offsets(kernel, list(map(mul, strides, dilation)), torch.arange(area))
    if in_lines:
        numbers = (corner[:, None] + within).flatten() // x.shape[-1]
        lines = x.reshape(-1, x.shape[-1]).index_select(0, numbers.to(x.device))
        return lines.reshape(-1, area, x.shape[-1]).mT
    within = torch.arange(x.shape[1])[:, None] * x.stride(1) + within
    numbers = (corner[:, None] + within.flatten()).flatten()
    return x.flatten().index_select(0, numbers.to(x.device)).reshape(-1, *within.shape)


def _memory_offsets(
    sizes: Sequence[int], strides: Sequence[int], chosen: torch.Tensor
) -> torch.Tensor:
    """Return the memory offsets of the elements with these numbers, in an array of these sizes."""
    along = torch.unravel_index(chosen, tuple(sizes))
    return torch.stack([i * step for i, step in zip(along, strides, strict=True)]).sum(0)


def output_rows(
    node: fx.Node, y: torch.Tensor, limit: int, ids: torch.Tensor | None = None
) -> torch.Tensor:
    """Return results at the places of `input_rows`: [groups, up to `limit`, out / groups]."""
    if ids is not None:
        return _by_expert(node, y, limit, ids)
    lines = y.flatten(0, -2) if node.target is aten.linear.default else y.movedim(1, -1)
    lines = lines.reshape(-1, lines.shape[-1])
    rows: torch.Tensor = lines[_sample_positions(len(lines), limit)].unflatten(
        1, (groups_of(node), -1)
    )
    return rows.movedim(1, 0)


def row_weights(weights: torch.Tensor, limit: int) -> torch.Tensor:
    """Return the weights of the rows of `input_rows`, for a linear layer: [up to `limit`]."""
    flat = weights.reshape(-1)
    return flat[_sample_positions(len(flat), limit)]


def input_sums(
    node: fx.Node, x: torch.Tensor, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, float]:
    """Return the sum of a batch for `input_mean`, float64, and the weight of its rows.

    Args:
        x: input of the layer.
        weights: weights of the rows of a linear layer, [*rows]; None: all 1.
    """
    if reads_features(node):
        return channel_sums(x, -1, weights)
    return x.sum(0, keepdim=True).double(), float(len(x))


def input_mean(node: fx.Node, parts: Sequence[tuple[torch.Tensor, float]]) -> torch.Tensor:
    """Return the mean of all input rows of a layer, over all batches: float64 [groups, inputs]."""
    if node.target is aten.linear.default:
        return channel_mean(parts).unsqueeze(0)
    count, total = 0.0, torch.zeros((), dtype=torch.float64)
    for summed, size in parts:
        patch, places = _patch_sum(node, summed)
        total, count = total + patch, count + places * size
    return total / max(count, 1)


def _patch_sum(node: fx.Node, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the sum of all patches that a convolution reads, [groups, inputs], and their count."""
    x, stride, dilation = _padded_input(node, x)
    kernel = _kernel(node)
    for d, (size, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = x.unfold(d + 2, (size - 1) * gap + 1, step)[..., ::gap]
    places = [0, *range(2, 2 + len(kernel))]  # of [batch, in, *positions, *kernel]
    patch: torch.Tensor = x.sum(places).unflatten(0, (groups_of(node), -1)).flatten(1)
    return patch, prod(x.shape[d] for d in places)


def channel_sums(
    y: torch.Tensor, channel: int, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, float]:
    """Return the sums of a batch for `channel_mean`. weights: as for `input_sums`."""
    if weights is not None:
        counted = (weights.reshape(1, -1) @ y.reshape(-1, y.shape[-1])).double()[0]
        return counted, float(weights.double().sum())
    others = [d for d in range(y.dim()) if d != channel % y.dim()]
    summed = (y.sum(others) if others else y).double()  # a float64 sum takes 5 times as long
    return summed, y.numel() / y.shape[channel]


def channel_mean(parts: Sequence[tuple[torch.Tensor, float]]) -> torch.Tensor:
    """Return the mean of each channel over several batches: float64 [channels]."""
    total, weight = torch.zeros((), dtype=torch.float64), 0.0
    for summed, count in parts:
        total, weight = total + summed, weight + count
    return total / max(weight, 1e-300)


def _padded_input(node: fx.Node, x: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
    """Return the padded input of a convolution, its stride and its dilation."""
    if node.target is torch_ops.conv:
        stride, pads, dilation = (G.integers(node, i) for i in (3, 4, 5))
        begin, end = pads[: len(stride)], pads[len(stride) :]
    else:
        spacing, padding, extra, dilation = (G.integers(node, i) for i in (3, 4, 5, 7))
        kernel = _kernel(node)
        begin = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
        end = [b + e for b, e in zip(begin, extra, strict=True)]
        sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], spacing, strict=True)]
        spread = x.new_zeros(*x.shape[:2], *sizes)
        every = [slice(None), slice(None), *(slice(None, None, s) for s in spacing)]
        spread[tuple(every)] = x
        x, stride = spread, [1] * len(spacing)
    widths = [w for pair in zip(reversed(begin), reversed(end), strict=True) for w in pair]
    return (F.pad(x, widths) if any(widths) else x), stride, dilation


def _kernel(node: fx.Node) -> list[int]:
    """Return the sizes of a convolution's kernel."""
    return [G.hint(s) for s in G.shape(G.source(node, 1))[2:]]


@lru_cache(maxsize=16)
def _sample_positions(count: int, limit: int) -> torch.Tensor:
    """Return the positions to use: all, or `limit` of them drawn by a fixed seed."""
    if count <= limit:
        return torch.arange(count)
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:limit]
    return drawn.sort().values


# Experts that few calibration tokens reach.
#
# The router sends a token to a few experts, so each sees a part of the calibration tokens, and some
# see hardly any. Weights that are fitted to a handful of tokens are worse on all others: such
# experts are rounded to nearest, and named.


MIN_TOKENS = 64
"""Tokens that an expert needs for rounding with error feedback."""

Rows = tuple[torch.Tensor, torch.Tensor]


def without_rare_experts(layer: str, rows: Rows) -> tuple[Rows, str]:
    """Return rows of which those of rare experts are zero, and a sentence that names these.

    Rows of zeros have a Hessian of zero, which rounds to nearest.

    Args:
        layer: name of the layer.
        rows: inputs [experts, rows, in] and targets [experts, rows, out]; missing rows are zero.
    """
    counts = rows[0].any(-1).sum(1)
    common = (counts >= MIN_TOKENS)[:, None, None]
    return (rows[0] * common, rows[1] * common), rare_experts(layer, counts)


def rare_experts(layer: str, tokens: torch.Tensor) -> str:
    """Return a sentence that names the experts with few tokens; "" without any.

    Args:
        layer: name of the layer.
        tokens: number of tokens of each expert.
    """
    numbers = (tokens < MIN_TOKENS).nonzero().flatten().tolist()
    if not numbers:
        return ""
    # the experts are in the subject: notes of several layers are joined by what follows it
    return (
        f"{layer}.weight[{','.join(map(str, numbers))}]: rounded to nearest, since fewer than "
        f"{MIN_TOKENS} calibration tokens reach these experts; more data may help"
    )


# Pruned weights, whose zeros no step fills: sparse kernels and compression depend on them.
#
# A weight counts as pruned by its exact zeros, of any pattern: 2:4, blocks, channels or single
# weights. A dense trained weight has none, and one that was stored in 8 bits about 2 %.


PRUNED = 0.1
"""Share of exact zeros from which a weight counts as pruned."""


def is_pruned(weight: torch.Tensor, layer: fx.Node) -> bool:
    """Return whether the float weight of a layer is pruned; zeros between groups do not count."""
    merged: int = layer.meta.get(G.MERGED_GROUPS, 1)
    own = weight.numel() // merged
    return own - int(weight.count_nonzero()) >= max(1, PRUNED * own)
