"""ONNX Pad, Resize and Upsample as calls of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from qtool.frontends.onnx.layers import pad_sides
from qtool.frontends.onnx.node_calls import Array, NodeCall

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
_WHERE = "coordinate_transformation_mode"


def pad(
    call: NodeCall, x: Any, pads: Array | None = None, fill: Any = None, axes: Any = None
) -> Any:
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


def upsample(call: NodeCall, x: torch.Tensor, scales: Any = None) -> torch.Tensor:
    """Compute Upsample, up to opset 9: the coordinates are always asymmetric."""
    scales = call.get("scales") if scales is None else scales.tolist()
    call.require("mode", "nearest")
    if scales[:2] != [1, 1]:
        raise call.unsupported("resizes the batch or the channels")
    return F.interpolate(x, None, scales[2:], "nearest")


def resize(call: NodeCall, x: Any, *rest: Any) -> Any:
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
    call: NodeCall, x: Any, scales: list[Any] | None, sizes: list[Any] | None
) -> tuple[list[Any] | None, list[Any] | None]:
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
