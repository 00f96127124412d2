"""Writes Resize nodes of kept parts for ONNX Runtime, which moves transposes over a Resize.

It ignores `axes` there, permutes sizes of the axes alone as if they were of all dimensions, and
refuses a cubic Resize that shrinks the middle dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_INPUTS = {1: "roi", 2: "scales", 3: "sizes"}


def write_all_dimensions(graph: onnx.GraphProto, ranks: Mapping[str, int]) -> None:
    """Give each Resize the scales or sizes of all dimensions instead of those in `axes`, in place.

    A Resize that keeps the aspect ratio has the factor of the axes alone: transposes are kept away
    from it by a Reshape to the same shape, and from a cubic one that may shrink.

    Args:
        graph: graph of a kept part.
        ranks: input of the graph -> rank.
    """
    nodes: list[onnx.NodeProto] = []
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        axes, rank = attributes.get("axes"), ranks.get(node.input[0] if node.input else "")
        policy = attributes.get("keep_aspect_ratio_policy", b"stretch")
        if node.op_type != "Resize" or rank is None:
            nodes.append(node)
            continue
        if axes and policy == b"stretch":
            nodes += _all_dimensions(graph, node, [axis % rank for axis in axes], rank)
        scales = stored.get(node.input[2]) if len(node.input) > 2 else None
        grows = scales is not None and scales.size > 0 and bool((scales >= 1).all())
        if policy != b"stretch" or (attributes.get("mode") == b"cubic" and not grows):
            nodes.append(_same_shape(graph, node, rank))
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _same_shape(graph: onnx.GraphProto, node: onnx.NodeProto, rank: int) -> onnx.NodeProto:
    """Let a node read a Reshape to the same shape, which is returned."""
    shape, same = f"{node.output[0]}/shape_of_input", f"{node.output[0]}/same"
    sizes = np.array([0] * (rank - 1) + [-1], np.int64)  # 0: as in the input
    graph.initializer.append(numpy_helper.from_array(sizes, shape))
    source, node.input[0] = node.input[0], same
    return helper.make_node("Reshape", [source, shape], [same])


def _all_dimensions(
    graph: onnx.GraphProto, node: onnx.NodeProto, axes: list[int], rank: int
) -> list[onnx.NodeProto]:
    """Remove `axes` from a node; return the nodes that compute its new inputs."""
    before: list[onnx.NodeProto] = []

    def stored(name: str, array: np.ndarray[Any, Any]) -> str:
        full = f"{node.output[0]}/{name}"
        graph.initializer.append(numpy_helper.from_array(array, full))
        return full

    node.attribute.remove(next(a for a in node.attribute if a.name == "axes"))
    for index, kind in _INPUTS.items():
        if len(node.input) <= index or not node.input[index]:
            continue
        if kind == "roi":  # begins, then ends
            default = stored("whole", np.repeat(np.array([0, 1], np.float32), rank))
        elif kind == "scales":
            default = stored("ones", np.ones(rank, np.float32))
        else:
            default = f"{node.output[0]}/shape"
            before.append(helper.make_node("Shape", [node.input[0]], [default]))
        where = [*axes, *(a + rank for a in axes)] if kind == "roi" else axes
        result = f"{node.output[0]}/all_{kind}"
        indices = stored(f"{kind}_axes", np.array(where, np.int64))
        before.append(
            helper.make_node("ScatterElements", [default, indices, node.input[index]], [result])
        )
        node.input[index] = result
    return before
