"""Padding of long kernels as an operator of its own, in float files.

ONNX Runtime's float convolution is up to twice as slow with the padding inside where the kernel is
long (15 rows by one column: 1.8 times, 31 by 31: 1.8 times, 3 by 3: as fast or faster), and a model
whose padding is an operator runs at the speed of the faster form in the files of torch's exporters.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper
from torch import fx

from qtool.core import graph as G
from qtool.core.unique_names import unique

LONG = 11
"""Least size of a long kernel: all of its sides have this, or 1."""
AXES_OPSET = 18  # the first whose Pad takes axes


def pad_long_kernels_apart(model: onnx.ModelProto, module: fx.GraphModule) -> None:
    """Write padding as the operator that it was in the user's model, for long 2-D kernels.

    The Pad names its axes, since ONNX Runtime would fuse it into the convolution otherwise.

    Args:
        model: ONNX model of the graph, changed in place.
        module: the graph.
    """
    if next(o.version for o in model.opset_import if not o.domain) < AXES_OPSET:
        return
    folded = {
        G.name_of(node): node.meta[G.FOLDED_PAD]
        for node in module.graph.nodes
        if G.FOLDED_PAD in node.meta and _is_long(node)
    }
    nodes = list(model.graph.node)
    taken = {name for node in nodes for name in (node.name, *node.input, *node.output)}
    taken |= {value.name for value in model.graph.initializer}
    for node in nodes:
        if node.op_type == "Conv" and node.name in folded:
            _pad_apart(model.graph, node, folded[node.name], taken)


def _is_long(conv: fx.Node) -> bool:
    """Return whether a 2-D convolution has a long kernel."""
    weight = conv.args[1]
    sides = [int(side) for side in G.shape(weight)[2:]] if isinstance(weight, fx.Node) else []
    long = [side for side in sides if side >= LONG]
    return len(sides) == 2 and bool(long) and all(side == 1 for side in sides if side not in long)


def _pad_apart(
    graph: onnx.GraphProto, conv: onnx.NodeProto, widths: list[int], taken: set[str]
) -> None:
    inside = next(a.ints for a in conv.attribute if a.name == "pads")
    inside[:] = [whole - width for whole, width in zip(inside, widths, strict=True)]
    stored = {"pads": np.array(widths, np.int64), "axes": np.array([2, 3], np.int64)}
    inputs = [conv.input[0], "", "", ""]
    for position, (key, array) in zip((1, 3), stored.items(), strict=True):
        inputs[position] = unique(f"{conv.name}.pad.{key}", taken)
        taken.add(inputs[position])
        graph.initializer.append(numpy_helper.from_array(array, inputs[position]))
    name = unique(f"{conv.name}.pad", taken)
    taken.add(name)
    pad = helper.make_node("Pad", inputs, [name], name, mode="constant")
    graph.node.insert(list(graph.node).index(conv), pad)
    conv.input[0] = name
