"""Causal attention over a KV cache, as ONNX Runtime's GroupQueryAttention computes it.

One kernel rotates queries and keys, appends keys and values to the cache, in place where the caller
gives one buffer as past and present, and attends to the tokens up to each new one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qtool.core.graph.torch_ops import operator
from qtool.core.quant_params import affine_codes
from qtool.core.types import INT8


@operator()
def sequence_lengths(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the last token of each text, int32 [batch], and the length of the longest one, int32
    []; mask [batch, total] is 1 for tokens and 0 for the padding behind them."""
    total = torch.ones_like(mask[0]).sum()
    return (mask.sum(1) - 1).to(torch.int32), total.to(torch.int32)


@operator()
def token_positions(last: Tensor, ids: Tensor, limit: int) -> Tensor:
    """Positions of new tokens, int64 [batch, sequence]: the last one of a text is at `last`
    [batch], or the first at 0 if the text is shorter than ids [batch, sequence]. All are below
    `limit`."""
    new = ids.shape[1]
    first = (last.to(torch.int64) + (1 - new)).clamp(min=0)
    return first[:, None] + torch.arange(new, device=ids.device)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, sequence, heads x width] -> [batch, heads, sequence, width]."""
    by_head: Tensor = x.unflatten(2, (heads, -1)).transpose(1, 2)
    return by_head


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first features of each head, twice as many as there are angles."""
    width = 2 * cos.shape[-1]
    rotated: Tensor = rotary_embedding(x[..., :width], cos, sin)
    return torch.cat([rotated, x[..., width:]], -1)


def _append(
    past: Tensor, new: Tensor, positions: Tensor, step: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the cache with new keys or values at their positions, as stored and as numbers."""
    if step is not None:
        new = affine_codes(new, step, step.new_zeros(()), INT8).to(torch.int8)
    index = positions[:, None, :, None].expand(new.shape)
    present = torch.cat([past, torch.zeros_like(new)], 2).scatter(2, index, new)
    return present, present if step is None else present.to(torch.float32) * step


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float, softcap: float
) -> Tensor:
    if not softcap:
        return F.scaled_dot_product_attention(q, keys, values, bias, scale=scale)
    scores = torch.tanh(q @ keys.transpose(2, 3) * (scale / softcap)) * softcap
    return torch.softmax(scores + bias, -1) @ values


@operator()
def grouped_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor,
    past_value: Tensor,
    last: Tensor,
    total: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    mask: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    heads: int,
    groups: int,
    scale: float,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Causal attention over a KV cache.

    query [batch, sequence, heads x width], key and value [batch, sequence, groups x width]; without
    key and value, query has the features of all three. Past key and value [batch, groups, past,
    width], float, or int8 with scales per channel [groups x width]. `last` and `total` of
    `sequence_lengths`. cos and sin [positions, angles]: of the rotary embedding; None without it.
    mask [batch, 1, sequence, total] is added before the softmax. window: number of last tokens that
    a token attends to, -1 for all. softcap: bound of the scores, 0 for none. Returns [batch,
    sequence, heads x width], and keys and values of all tokens, rotated; those of padding are
    undefined.
    """
    if key is None or value is None:
        width = query.shape[2] // (heads + 2 * groups)
        query, key, value = query.split([heads * width, groups * width, groups * width], 2)
    positions = token_positions(last, query[:, :, 0], 0)
    q, k, v = (_split_heads(t, n) for t, n in ((query, heads), (key, groups), (value, groups)))
    if cos is not None and sin is not None:
        angles = cos[positions], sin[positions]
        q, k = (_rotate(t, *angles) for t in (q, k))
    steps = (
        None if t is None else t.unflatten(0, (groups, 1, -1)) for t in (key_scale, value_scale)
    )
    pairs = [
        _append(past, new, positions, step)
        for past, new, step in zip((past_key, past_value), (k, v), steps, strict=True)
    ]
    keys, values = (real.repeat_interleave(heads // groups, 1) for _, real in pairs)
    seen = torch.arange(keys.shape[2], device=q.device)
    visible = seen <= positions[:, :, None]
    if window > 0:
        visible = visible & (seen > positions[:, :, None] - window)
    bias = torch.where(visible[:, None], 0.0, float("-inf"))
    bias = bias if mask is None else bias + mask
    attended = _attend(q, keys, values, bias, scale, softcap)
    return attended.transpose(1, 2).flatten(2), pairs[0][0], pairs[1][0]


@operator(name="rotary")
def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [batch, heads, time, features]; cos and sin [batch or 1, time, features / 2] of the angle
    per position and pair of features (i, i + features / 2). The formula of transformers, so that
    the result has the same memory layout."""
    first, second = x.chunk(2, -1)
    cos, sin = (torch.cat((each, each), -1).unsqueeze(1) for each in (cos, sin))
    return x * cos + torch.cat((-second, first), -1) * sin
