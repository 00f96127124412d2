"""The float model as an ONNX file, which int8 files are compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper
from torch import fx

from qtool.backends.onnx.export.onnx_file import to_onnx
from qtool.backends.onnx.export.torch_exporter import fuse
from qtool.backends.onnx.export.weight_storage import write_weights
from qtool.backends.onnx.file_info import float_metadata
from qtool.backends.onnx.storage import atomic_save
from qtool.core import graph as G
from qtool.core.atomic import write_atomic
from qtool.core.graph import FloatGraph
from qtool.core.graph.deferred import is_deferred
from qtool.core.value_names import unique
from qtool.planning.targets import DEFAULT, target

_LONG = 11
"""Least size of a long kernel: all of its sides have this, or 1."""
_AXES_OPSET = 18  # the first whose Pad takes axes


def float_onnx(
    graph: FloatGraph,
    target_name: str = DEFAULT,
    store: Callable[[ir.Model], None] = lambda _: None,
) -> onnx.ModelProto:
    """Return the float model as ONNX, from the canonical graph, in the opset of the target.

    It is as fast as files of torch's exporters: padding of long kernels stays an operator.

    Args:
        graph: the graph.
        target_name: name of the target.
        store: see `to_onnx`.

    Raises:
        ExportError: an operator cannot be written; names it.
    """
    chosen = target(target_name)
    module = fuse(graph.module, chosen)
    model = to_onnx(module, graph, chosen.file.opset, float_metadata(), store=store)
    _pad_long_kernels_apart(model, module)
    return model


def write_float(graph: FloatGraph, path: str | Path, target_name: str = DEFAULT) -> Path:
    """Write `float_onnx` to a file and return its path.

    Weights that are deferred are written one after the other, into a data file next to it.

    Raises:
        ExportError: an operator cannot be written.
        FileError: the file cannot be written.

    Example:
        >>> qtool.write_float(qtool.capture_model(model, x).graph, "model.onnx")
    """
    path = Path(path)
    constants = graph.graph.find_nodes(op="get_attr")
    if any(is_deferred(G.tensor(graph.module, node)) for node in constants):
        store = partial(write_weights, folder=path.parent, name=path.name)
        write_atomic(path, float_onnx(graph, target_name, store).SerializeToString())
        return path
    with atomic_save(float_onnx(graph, target_name), path):
        return path


# ONNX Runtime's float convolution is up to twice as slow with the padding inside where the kernel
# is long (15 rows by one column: 1.8 times, 31 by 31: 1.8 times, 3 by 3: as fast or faster), and a
# model whose padding is an operator runs at the speed of the faster form in the files of torch's
# exporters.


def _pad_long_kernels_apart(model: onnx.ModelProto, module: fx.GraphModule) -> None:
    """Write padding as the operator that it was in the user's model, for long 2-D kernels.

    The Pad names its axes, since ONNX Runtime would fuse it into the convolution otherwise.

    Args:
        model: ONNX model of the graph, changed in place.
        module: the graph.
    """
    if next(o.version for o in model.opset_import if not o.domain) < _AXES_OPSET:
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
    long = [side for side in sides if side >= _LONG]
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
