"""Pools whose sizes are known, without `ceil_mode`.

Before opset 22 onnx infers a window too many where the last one would begin in the padding, and
refuses a file that states the right size. Where nothing hangs over the end the attribute says
nothing; where the padding does not count, as much of it behind the image says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from qtool.backends.onnx.reading import attributes_of

Found = Mapping[str, Any]
Sizes = Sequence[int]
_POOLS = ("AveragePool", "LpPool", "MaxPool")


def remove_pool_ceil_mode(model: ir.Model) -> None:
    """Rewrites their attributes, in place."""
    for node in model.graph:
        found = attributes_of(node)
        if node.op_type not in _POOLS or not found.get("ceil_mode", 0):
            continue
        n = len(found["kernel_shape"])
        image, result = _sizes(node.inputs[0], n), _sizes(node.outputs[0], n)
        if image is None or result is None:
            continue
        same = found.get("auto_pad", "NOTSET").startswith("SAME")
        pads = (_same if same else _floored)(found, image, result)
        if pads is not None:
            node.attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 0)
        elif not same:  # some windows hang over
            pads = _shortened(found, image, result)
        if pads is not None:
            node.attributes.pop("auto_pad", None)
            node.attributes["pads"] = ir.AttrInt64s("pads", pads)


def _windows(found: Found, image: Sizes, result: Sizes) -> tuple[list[int], list[int], list[int]]:
    """The padding in front, behind, and how much would end where the last windows do."""
    n = len(image)
    ones, none = [1] * n, [0] * 2 * n
    pads = list(found.get("pads", none)) if found.get("auto_pad", "NOTSET") == "NOTSET" else none
    strides, dilations = found.get("strides", ones), found.get("dilations", ones)
    spans = [d * (k - 1) + 1 for k, d in zip(found["kernel_shape"], dilations, strict=True)]
    each = zip(result, strides, spans, image, pads[:n], strict=True)
    return pads[:n], pads[n:], [(count - 1) * s + w - size - b for count, s, w, size, b in each]


def _same(found: Found, image: Sizes, result: Sizes) -> list[int] | None:
    _, _, whole = _windows(found, image, result)
    if min(whole) < -1:  # the runtime cuts the image in front, or fails
        return None
    begins = [max(e + (found["auto_pad"] == "SAME_LOWER"), 0) // 2 for e in whole]
    return [*begins, *(max(e - b, 0) for e, b in zip(whole, begins, strict=True))]


def _floored(found: Found, image: Sizes, result: Sizes) -> list[int] | None:
    """The padding with which flooring gives as many windows; None where there is none."""
    begins, ends, whole = _windows(found, image, result)
    strides = found.get("strides", [1] * len(image))
    if all(0 <= e - last < s for e, last, s in zip(ends, whole, strides, strict=True)):
        return [*begins, *ends]
    kernel = found["kernel_shape"]
    if found.get("count_include_pad", 0) or any(e >= k for e, k in zip(whole, kernel, strict=True)):
        return None  # the runtime takes no other
    return [*begins, *(max(e, 0) for e in whole)]


def _shortened(found: Found, image: Sizes, result: Sizes) -> list[int]:
    """The padding without that in which a window would begin."""
    begins, ends, whole = _windows(found, image, result)
    return [*begins, *(w if 0 <= w <= e else e for e, w in zip(ends, whole, strict=True))]


def _sizes(value: ir.Value | None, count: int) -> Sizes | None:
    """The last sizes of an image."""
    shape = None if value is None else value.shape
    sizes = [] if shape is None else [s for s in list(shape)[-count:] if isinstance(s, int)]
    return sizes if len(sizes) == count else None
