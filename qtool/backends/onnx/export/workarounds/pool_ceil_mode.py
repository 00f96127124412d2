"""Workaround for onnx: pools with `ceil_mode`.

Library: onnx, seen in 1.23.2 below opset 22, operators AveragePool, LpPool and MaxPool.
Defect: shape inference counts a window too many where the last window would begin in the padding,
so that the checker refuses a file that states the right size.
Rewrite, for pools of known sizes: no `ceil_mode`. Where no window extends past the end the
attribute has no effect; where padded values do not count, pads behind the image have its effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from qtool.backends.onnx.graph_edits import attributes_of
from qtool.backends.workaround import Workaround
from qtool.core.windows import overhang, spans

_Attributes = Mapping[str, Any]
_Sizes = Sequence[int]
_POOLS = ("AveragePool", "LpPool", "MaxPool")


def remove_pool_ceil_mode(model: ir.Model) -> None:
    """Rewrite the attributes of pools with `ceil_mode` and known sizes, in place."""
    for node in model.graph:
        attributes = attributes_of(node)
        if node.op_type not in _POOLS or not attributes.get("ceil_mode", 0):
            continue
        rank = len(attributes["kernel_shape"])
        image, result = _sizes(node.inputs[0], rank), _sizes(node.outputs[0], rank)
        if image is None or result is None:
            continue
        same = attributes.get("auto_pad", "NOTSET").startswith("SAME")
        pads = (_same_pads if same else _floor_pads)(attributes, image, result)
        if pads is not None:
            node.attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 0)
        elif not same:  # some windows extend past the end
            pads = _shorter_pads(attributes, image, result)
        if pads is not None:
            node.attributes.pop("auto_pad", None)
            node.attributes["pads"] = ir.AttrInt64s("pads", pads)


def _windows(
    attributes: _Attributes, image: _Sizes, result: _Sizes
) -> tuple[list[int], list[int], list[int]]:
    """Pads before the image, pads behind it, and the pads that the last windows would need."""
    rank = len(image)
    ones, none = [1] * rank, [0] * 2 * rank
    explicit = attributes.get("auto_pad", "NOTSET") == "NOTSET"
    pads = list(attributes.get("pads", none)) if explicit else none
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    covered = spans(attributes["kernel_shape"], dilations)
    needed = list(map(overhang, result, image, covered, strides, pads[:rank]))
    return pads[:rank], pads[rank:], needed


def _same_pads(attributes: _Attributes, image: _Sizes, result: _Sizes) -> list[int] | None:
    _, _, needed = _windows(attributes, image, result)
    if min(needed) < -1:  # the runtime cuts the image in front, or fails
        return None
    begins = [max(n + (attributes["auto_pad"] == "SAME_LOWER"), 0) // 2 for n in needed]
    return [*begins, *(max(n - b, 0) for n, b in zip(needed, begins, strict=True))]


def _floor_pads(attributes: _Attributes, image: _Sizes, result: _Sizes) -> list[int] | None:
    """Return the pads with which rounding down gives as many windows, None without such pads."""
    begins, ends, needed = _windows(attributes, image, result)
    strides = attributes.get("strides", [1] * len(image))
    if all(0 <= e - n < s for e, n, s in zip(ends, needed, strides, strict=True)):
        return [*begins, *ends]
    kernel = attributes["kernel_shape"]
    too_wide = any(n >= k for n, k in zip(needed, kernel, strict=True))
    if attributes.get("count_include_pad", 0) or too_wide:
        return None  # the runtime takes no pads as wide as the window
    return [*begins, *(max(n, 0) for n in needed)]


def _shorter_pads(attributes: _Attributes, image: _Sizes, result: _Sizes) -> list[int]:
    """Return the pads without the part in which a window would begin."""
    begins, ends, needed = _windows(attributes, image, result)
    return [*begins, *(n if 0 <= n <= e else e for e, n in zip(ends, needed, strict=True))]


def _sizes(value: ir.Value | None, count: int) -> _Sizes | None:
    """Return the last `count` sizes of a tensor, None unless all are known."""
    shape = None if value is None else value.shape
    sizes = [] if shape is None else [s for s in list(shape)[-count:] if isinstance(s, int)]
    return sizes if len(sizes) == count else None


POOL_CEIL_MODE = Workaround(
    key="pool-ceil-mode",
    package="onnx",
    reason="shape inference below opset 22 counts a window too many where the last one would "
    "begin in the padding",
    rewrite=remove_pool_ceil_mode,
    seen_in="1.23.2",
    upstream="https://github.com/onnx/onnx/pull/5741",
    reproduction="test_onnx.py::test_pool_with_ceil_mode_has_a_window_too_many",
)
