"""Pools whose sizes are known, without `ceil_mode`.

Before opset 22 onnx infers a window too many where the last one would begin in the padding, and
refuses a file that states the right size. Where nothing hangs over the end the attribute says
nothing; where the padding does not count, as much of it behind the image says the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from qtool.onnx_graph.reading import attributes_of

__all__ = ["plain_pools"]

_POOLS = ("AveragePool", "LpPool", "MaxPool")


def plain_pools(model: ir.Model) -> None:
    """Rewrites their attributes, in place."""
    for node in model.graph:
        if node.op_type in _POOLS and attributes_of(node).get("ceil_mode", 0):
            pads = _pads(node, attributes_of(node))
            if pads is None:
                continue
            node.attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 0)
            if pads:
                node.attributes.pop("auto_pad", None)
                node.attributes["pads"] = ir.AttrInt64s("pads", pads)


def _pads(node: ir.Node, found: dict[str, Any]) -> list[int] | None:
    """The padding with which flooring gives as many windows: empty where it is that of the node,
    None where there is none."""
    kernel, way = found["kernel_shape"], found.get("auto_pad", "NOTSET")
    n = len(kernel)
    image, result = _sizes(node.inputs[0], n), _sizes(node.outputs[0], n)
    if image is None or result is None:
        return None
    ones = [1] * n
    strides, dilations = found.get("strides", ones), found.get("dilations", ones)
    pads = list(found.get("pads", [0] * 2 * n)) if way == "NOTSET" else [0] * 2 * n
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    each = zip(result, strides, spans, image, pads[:n], strict=True)
    ends = [(count - 1) * s + w - size - b for count, s, w, size, b in each]
    if way.startswith("SAME"):  # all that is padded is at the end so far
        if min(ends) < -1:  # the runtime cuts the image in front, or fails
            return None
        begins = [max(e + (way == "SAME_LOWER"), 0) // 2 for e in ends]
        return [*begins, *(max(e - b, 0) for e, b in zip(ends, begins, strict=True))]
    begins = pads[:n]
    room = [s + b + e - w for s, b, e, w in zip(image, begins, pads[n:], spans, strict=True)]
    if all(r // s + 1 == count for r, s, count in zip(room, strides, result, strict=True)):
        return []
    if found.get("count_include_pad", 0) or any(e >= k for e, k in zip(ends, kernel, strict=True)):
        return None  # the runtime takes no other
    return [*begins, *(max(e, 0) for e in ends)]


def _sizes(value: ir.Value | None, count: int) -> Sequence[int] | None:
    """The last sizes of an image."""
    shape = None if value is None else value.shape
    sizes = [] if shape is None else [s for s in list(shape)[-count:] if isinstance(s, int)]
    return sizes if len(sizes) == count else None
