"""ONNX layers, pools, norms, reductions, Pad, Resize and Upsample as calls of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qtool.core.spatial_functions import AVERAGE_POOL, CONV, CONV_TRANSPOSE, MAX_POOL
from qtool.core.types import Array
from qtool.core.windows import fixed_same_pads, last_pad, same_padding, spans
from qtool.frontends.onnx.node_calls import NodeCall

Known = Array | None  # an input whose value is known without data


def _pads(
    call: NodeCall, x: Any, kernel: Sequence[int], dilated: bool = True
) -> tuple[list[int], list[int]]:
    """Return the pads at the beginnings and at the ends.

    Args:
        call: the node.
        x: input [N, C, *spatial].
        kernel: sizes of the window.
        dilated: auto_pad counts with dilated windows.
    """
    rank, kind = len(kernel), call.get("auto_pad", "NOTSET")
    if kind in ("NOTSET", "VALID"):
        pads = list(call.get("pads", [0] * 2 * rank)) if kind == "NOTSET" else [0] * 2 * rank
        return pads[:rank], pads[rank:]
    strides, dilations = _strides_and_dilations(call, rank)
    begins, ends = [], []
    covered = spans(kernel, dilations) if dilated else kernel
    for size, span, s, d in zip(x.shape[2:], covered, strides, dilations, strict=True):
        if not isinstance(size, int) and span < s:
            raise call.unsupported("auto_pad of a dynamic size with strides over the window")
        fixed = fixed_same_pads(span, s, kind == "SAME_LOWER")
        if fixed is not None and not isinstance(size, int) and (dilated or d == 1):
            begins.append(fixed[0])
            ends.append(fixed[1])
            continue
        total = same_padding(size, span, s)
        if total < 0 and not dilated and d != 1:
            raise call.unsupported(
                "strides longer than a dilated window, for which the runtime crops"
            )
        total = max(0, total) if isinstance(total, int) else total  # a window covers its stride
        less, more = total // 2, total - total // 2
        begins.append(less if kind == "SAME_UPPER" else more)
        ends.append(more if kind == "SAME_UPPER" else less)
    return begins, ends


def _strides_and_dilations(call: NodeCall, rank: int) -> tuple[list[int], list[int]]:
    strides, dilations = (list(call.get(k, [1] * rank)) for k in ("strides", "dilations"))
    return strides, dilations


def _equal_pads(begins: Sequence[int], ends: Sequence[int]) -> bool:
    """Return whether both ends have the same pads, for all sizes."""
    return all(isinstance(width, int) for width in (*begins, *ends)) and begins == ends


def pad_sides(
    x: Tensor,
    begins: Sequence[int],
    ends: Sequence[int],
    fill: float | None = None,
    mode: str = "constant",
) -> Tensor:
    pairs = zip(reversed(begins), reversed(ends), strict=True)
    return F.pad(x, [w for pair in pairs for w in pair], mode, fill)


def conv(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = weight.dim() - 2
    begins, ends = _pads(call, x, weight.shape[2:])
    if not _equal_pads(begins, ends):
        x, begins = pad_sides(x, begins, ends, 0.0), [0] * rank
    strides, dilations = _strides_and_dilations(call, rank)
    return CONV[rank](x, weight, bias, strides, begins, dilations, call.get("group", 1))


def conv_transpose(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute a transposed convolution; what torch does not crop is sliced off its result."""
    rank = weight.dim() - 2
    strides, dilations = _strides_and_dilations(call, rank)
    pads, extra, parts = list[int](), list[int](), list[slice]()
    crops = zip(*_crops(call, x, weight.shape[2:]), strides, dilations, strict=True)
    for begin, end, s, d in crops:
        longer = begin - end  # torch crops both ends alike, and lengthens the last one
        fits = 0 <= longer < max(s, d)
        pads.append(begin if fits else max(min(begin, end), 0))
        extra.append(longer if fits else max(-end, 0))
        cut = 0 if fits else max(end, 0) - pads[-1]
        parts.append(slice(begin - pads[-1], -cut or None))
    y = CONV_TRANSPOSE[rank](x, weight, bias, strides, pads, extra, call.get("group", 1), dilations)
    whole = parts == [slice(0, None)] * rank
    return y if whole else y[(slice(None), slice(None), *parts)]


def _crops(call: NodeCall, x: Tensor, kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return what a transposed convolution crops off the beginnings and off the ends; below 0 at an
    end where output_padding lengthens it."""
    rank, kind = len(kernel), call.get("auto_pad", "NOTSET")
    strides, dilations = _strides_and_dilations(call, rank)
    extra = list(call.get("output_padding", [0] * rank))
    wanted = call.get("output_shape")
    if wanted is None and kind in ("NOTSET", "VALID"):
        pads = list(call.get("pads", [0] * 2 * rank)) if kind == "NOTSET" else [0] * 2 * rank
        return pads[:rank], [p - e for p, e in zip(pads[rank:], extra, strict=True)]
    begins, ends = [], []
    for i, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        covered = extra[i] + d * (k - 1) + 1
        total = max(0, covered - s)  # SAME: the output is the input times the stride
        if wanted is not None:
            total = covered + s * (x.shape[2 + i] - 1) - wanted[i - rank]
        if not isinstance(total, int):
            raise call.unsupported("output_shape of a dynamic size")
        less, more = total // 2, total - total // 2
        begins.append(less if kind == "SAME_UPPER" else more)
        ends.append((more if kind == "SAME_UPPER" else less) - extra[i])
    return begins, ends


def gemm(call: NodeCall, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """Compute a linear layer if it is one; `read_nodes` stores constant weights as [out, in]."""
    a = a.t() if call.get("transA", 0) else a
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    plain = c is None or (c.dim() < 2 and beta == 1.0)
    if call.get("transB", 0) and alpha == 1.0 and plain:
        return F.linear(a, b, c)
    product = torch.matmul(a, b.t() if call.get("transB", 0) else b)
    product = product if alpha == 1.0 else product * alpha
    return product if c is None else product + (c if beta == 1.0 else c * beta)


def linear(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


def dropout(call: NodeCall, x: Tensor, ratio: Known = None) -> Tensor:
    """Return the input, as in eval mode."""
    _require_inference(call)
    return x


def max_pool(call: NodeCall, x: Tensor) -> Tensor:
    kernel = call.get("kernel_shape")
    strides, dilations = _strides_and_dilations(call, len(kernel))
    begins, ends = _pads(call, x, kernel, dilated=False)  # as in the runtime
    covered = spans(kernel, dilations)
    if not all(isinstance(width, int) for width in (*begins, *ends)):
        if call.get("ceil_mode", 0) or any(d != 1 for d in dilations):
            raise call.unsupported("auto_pad of a dynamic size with ceil_mode or dilations")
        # the border again: a window that reaches over it contains it
        x = pad_sides(x, begins, ends, mode="replicate")
        return MAX_POOL[len(kernel)](x, kernel, strides)
    wide = any(2 * b > c for b, c in zip(begins, covered, strict=True))
    missed = any(begins) and any(d > s for d, s in zip(dilations, x.shape[2:], strict=True))
    ceil = bool(call.get("ceil_mode", 0))
    if begins != ends or wide or missed:  # a window with padding only returns the lowest number
        if ceil:
            sizes = zip(x.shape[2:], covered, strides, begins, ends, strict=True)
            ends, ceil = [last_pad(*each) for each in sizes], False
        x, begins = pad_sides(x, begins, ends, torch.finfo(x.dtype).min), [0] * len(kernel)
    return MAX_POOL[len(kernel)](x, kernel, strides, begins, dilations, ceil)


def average_pool(call: NodeCall, x: Tensor) -> Tensor:
    kernel = call.get("kernel_shape")
    begins, ends = _pads(call, x, kernel)
    strides, dilations = _strides_and_dilations(call, len(kernel))
    counts, ceil = bool(call.get("count_include_pad", 0)), bool(call.get("ceil_mode", 0))
    if any(d != 1 for d in dilations) or (ceil and any(begins + ends)):
        raise call.unsupported("dilations, or pads with ceil_mode")
    if not _equal_pads(begins, ends):
        pool, inside = AVERAGE_POOL[len(kernel)], torch.ones_like(x[:1, :1])
        x, inside = (pad_sides(each, begins, ends, 0.0) for each in (x, inside))
        if counts:
            return pool(x, kernel, strides, 0, ceil)
        if all(isinstance(size, int) for size in x.shape[2:]):
            raise call.unsupported("pads that differ at the two ends and do not count")
        return pool(x, kernel, strides) / pool(inside, kernel, strides)
    return AVERAGE_POOL[len(kernel)](x, kernel, strides, begins, ceil, counts)


def _require_inference(call: NodeCall) -> None:
    """Check the attribute that states eval mode before opset 7."""
    if call.opset < 7 and not call.get("is_test", 0):
        raise call.unsupported("training mode")


def batch_norm(
    call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    call.require("training_mode", 0)
    _require_inference(call)
    epsilon = call.get("epsilon", 1e-5)
    if not call.get("spatial", 1):  # before opset 9: statistics per element
        normed: Tensor = (x - mean) * (weight / torch.sqrt(var + epsilon)) + bias
        return normed
    return F.batch_norm(x, mean, var, weight, bias, False, 0.0, epsilon)


def layer_norm(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    call.require("stash_type", 1)
    axis = call.get("axis", -1) % x.dim()
    sizes, epsilon = list(x.shape[axis:]), call.get("epsilon", 1e-5)
    if all(t is None or list(t.shape) == sizes for t in (weight, bias)):
        return F.layer_norm(x, sizes, weight, bias, epsilon)
    plain: Tensor = F.layer_norm(x, sizes, None, None, epsilon) * weight
    return plain if bias is None else plain + bias


def instance_norm(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x, weight=weight, bias=bias, eps=call.get("epsilon", 1e-5))


def group_norm(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalize groups; there is one weight per group before opset 21, then one per channel."""
    call.require("stash_type", 1)
    groups, epsilon = call.get("num_groups"), call.get("epsilon", 1e-5)
    if len(weight) != x.shape[1]:
        weight, bias = (t.repeat_interleave(x.shape[1] // groups) for t in (weight, bias))
    inside = list(x.shape[1:])
    if all(isinstance(size, int) for size in inside) and math.prod(inside) == groups:
        shifts: Tensor = (x - x) + bias.reshape(-1, *[1] * (x.dim() - 2))
        return shifts  # each value is its own mean, which torch refuses
    return F.group_norm(x, groups, weight, bias, epsilon)


def cumulative_sum(call: NodeCall, x: Tensor, axis: Array) -> Tensor:
    call.require("exclusive", 0)
    call.require("reverse", 0)
    return torch.cumsum(x, int(axis), dtype=x.dtype)


def arg_max(call: NodeCall, x: Tensor) -> Tensor:
    call.require("select_last_index", 0)
    return torch.argmax(x, call.get("axis", 0), bool(call.get("keepdims", 1)))


def divide(call: NodeCall, a: Any, b: Any) -> Any:
    whole = not any(isinstance(v, Tensor) and v.is_floating_point() for v in (a, b))
    return torch.div(a, b, rounding_mode="trunc") if whole and not isinstance(b, float) else a / b


def power(call: NodeCall, a: Tensor, b: Tensor) -> Tensor:
    """Return a ** b in the dtype of the base."""
    result = torch.pow(a, b)
    return result if result.dtype == a.dtype else result.to(a.dtype)


_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
_WHERE = "coordinate_transformation_mode"


def pad(
    call: NodeCall, x: Tensor, pads: Known = None, fill: Known = None, axes: Known = None
) -> Tensor:
    mode, rank = call.get("mode", "constant"), x.dim()
    widths = list(call.get("pads")) if pads is None else pads.tolist()
    where = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    begins, ends = [0] * rank, [0] * rank
    for i, axis in enumerate(where):
        begins[axis], ends[axis] = widths[i], widths[i + len(where)]
    if mode == "constant":
        value = call.get("value", 0.0) if fill is None else fill.item()
        return pad_sides(x, begins, ends, value)
    first = next((a for a in range(rank) if begins[a] or ends[a]), rank)
    pairs = zip(reversed(begins[first:]), reversed(ends[first:]), strict=True)
    widths = [w for pair in pairs for w in pair]
    if any(w < 0 for w in widths):
        raise call.unsupported("negative pads")
    torch_mode = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    return F.pad(x, widths, mode=torch_mode)


def upsample(call: NodeCall, x: Tensor, scales: Known = None) -> Tensor:
    """Compute Upsample, up to opset 9: the coordinates are always asymmetric."""
    factors = call.get("scales") if scales is None else scales.tolist()
    call.require("mode", "nearest")
    if factors[:2] != [1, 1]:
        raise call.unsupported("resizes the batch or the channels")
    return F.interpolate(x, None, factors[2:], "nearest")


def resize(call: NodeCall, x: Tensor, *rest: Any) -> Tensor:
    call.require("antialias", 0)
    if call.opset < 11:
        return upsample(call, x, *rest)
    _, scales, sizes = (*rest, None, None, None)[:3]
    scales, sizes = (a.tolist() if a is not None and a.size else None for a in (scales, sizes))
    if call.get("axes") is not None:
        scales, sizes = _of_all_dimensions(call, x, scales, sizes)
    elif sizes is not None:
        call.require("keep_aspect_ratio_policy", "stretch")
    lead = scales[:2] if sizes is None and scales is not None else (sizes or [])[:2]
    spatial_only = lead == ([1, 1] if sizes is None else list(x.shape[:2]))
    if not spatial_only or x.dim() < 3:
        raise call.unsupported("resizes the batch or the channels")
    factors = None if scales is None else scales[2:]
    wanted = None if sizes is None else sizes[2:]
    mode, where = call.get("mode", "nearest"), call.get(_WHERE, "half_pixel")
    if mode == "nearest":
        return F.interpolate(x, wanted, factors, _nearest(call, where, factors))
    standard = where != "pytorch_half_pixel" or (  # which differs for an output size of 1
        wanted is not None and all(isinstance(s, int) and s > 1 for s in wanted)
    )
    if (
        mode == "linear"
        and where in ("half_pixel", "pytorch_half_pixel", "align_corners")
        and standard
    ):
        return F.interpolate(x, wanted, factors, _LINEAR[x.dim() - 2], where == "align_corners")
    raise call.unsupported(f"{mode}, {where}")


def _of_all_dimensions(
    call: NodeCall, x: Tensor, scales: list[float] | None, sizes: list[int] | None
) -> tuple[list[float] | None, list[int] | None]:
    """Return scales or sizes of the dimensions in `axes` as those of all dimensions."""
    axes = [a % x.dim() for a in call.get("axes")]
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    if sizes is not None and policy != "stretch":  # one factor for all
        before = [x.shape[a] for a in axes]
        if not all(isinstance(n, int) for n in (*before, *sizes)):
            raise call.unsupported(f"{policy} of a dynamic size")
        ratios = [new / old for new, old in zip(sizes, before, strict=True)]
        factor = min(ratios) if policy == "not_larger" else max(ratios)
        stored = float(np.nextafter(np.float32(factor), np.float32(np.inf)))
        if any(math.floor(stored * n) != math.floor(factor * n + 0.5) for n in before):
            raise call.unsupported(f"{policy} with sizes that are rounded up")
        scales, sizes = [stored] * len(axes), None
    if sizes is not None:
        chosen = dict(zip(axes, sizes, strict=True))
        return None, [chosen.get(i, n) for i, n in enumerate(x.shape)]
    factors = dict(zip(axes, scales or (), strict=True))
    return [factors.get(i, 1) for i in range(x.dim())], None


def _nearest(call: NodeCall, where: str, factors: Sequence[float] | None) -> str:
    """Return torch's interpolation mode for a rounding of coordinates."""
    rounding = call.get("nearest_mode", "round_prefer_floor")
    centred = where in ("half_pixel", "pytorch_half_pixel")
    if where == "asymmetric" and rounding == "floor":
        return "nearest"
    # each of k copies is strictly nearer to its own element than to any other
    if centred and rounding.startswith("round") and factors and all(f % 1 == 0 for f in factors):
        return "nearest"
    if where == "half_pixel" and rounding == "round_prefer_ceil":
        return "nearest-exact"
    raise call.unsupported(f"nearest, {where}, {rounding}")
