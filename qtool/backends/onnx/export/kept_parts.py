"""Parts of an ONNX model that were captured unchanged, written back.

In the graph a part is one operator (see qtool/backends/onnx/subgraph.py). The exporter writes it
as one node of a private domain that holds the part, and here its nodes replace that node.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxscript
from onnx import helper, numpy_helper, version_converter
from torch import fx

from qtool.backends.onnx.nested_graphs import inner_graphs, nested_nodes
from qtool.backends.onnx.operators.schemas import TorchOperator, Writer
from qtool.backends.onnx.subgraph import (
    OnnxSubgraph,
    onnx_part,
    subgraph_of,
)
from qtool.core import graph as G
from qtool.core.errors import ExportError
from qtool.core.remedies import OtherFile
from qtool.core.types import Array

_DOMAIN, _PART = "qtool.kept", "part"
_RESIZE = 11  # the opset that added coordinate modes to Resize
_ROWS = 13  # before this opset Hardmax is over all dimensions from its axis on
_Schema = onnx.defs.OpSchema

_INPUTS = {1: "roi", 2: "scales", 3: "sizes"}


@cache
def _placeholder(outputs: int, reads: bool) -> Any:
    """Return the operator that holds a part; one that depends on sizes only has no inputs."""
    many = _Schema.FormalParameterOption.Variadic
    types = [f"T{i}" for i in range(outputs)]
    tensors = sorted(onnx.defs.get_schema("Identity", 13).type_constraints[0].allowed_type_strs)
    inputs = [_Schema.FormalParameter("X", "T", param_option=many, is_homogeneous=False)]
    schema = _Schema(
        f"Part{outputs}" if reads else f"Constant{outputs}",
        _DOMAIN,
        1,
        inputs=inputs if reads else [],
        outputs=[_Schema.FormalParameter(f"Y{i}", t) for i, t in enumerate(types)],
        type_constraints=[(t, tensors, "") for t in ("T", *types)],
        attributes=[_Schema.Attribute(_PART, _Schema.AttrType.STRING)],
    )
    return onnxscript.values.Op(onnxscript.values.Opset(_DOMAIN, 1), schema.name, schema)


def _translate_part(inputs: Any, part: str) -> Any:
    outputs = len(subgraph_of(part).outputs)
    results = _placeholder(outputs, bool(inputs))(*inputs, part=part)
    return [results] if outputs == 1 else list(results)


PART_TRANSLATIONS: dict[TorchOperator, Writer] = {onnx_part: _translate_part}
"""The translation of parts, in the form that torch.onnx takes."""


def needed_opset(module: fx.GraphModule, opset: int) -> int:
    """Return the opset of a file that holds the parts of a graph: `opset`, or a newer one.

    An operator that is unchanged since older opsets does not need the newer one.
    """
    needed = opset
    for node in G.calls(module.graph):
        if node.target is onnx_part:
            model = subgraph_of(str(node.args[1])).model
            for each in nested_nodes(model.graph.node):
                needed = max(needed, _needed(each, _opset_of(model), opset))
    return needed


def _needed(node: onnx.NodeProto, own: int, opset: int) -> int:
    """Return the lowest opset that has a node of a part.

    For a node that is deprecated in the opset of the file it is the first in which it is not.
    """
    if not _own(node):
        return 0
    newest = onnx.defs.onnx_opset_version()
    later = range(max(own, opset), newest + 1)
    return max(
        _since(node.op_type, own),
        next((v for v in later if not _is_deprecated(node.op_type, v)), 0),
    )


def inline_parts(model: ir.Model) -> None:
    """Replace the nodes that hold a part by the nodes of the part, in place.

    Raises:
        ExportError: a part has no form in the opset of the file; names it.
    """
    for node in list(model.graph):
        if node.domain == _DOMAIN:
            text = node.attributes[_PART].as_string()
            _replace(model, node, subgraph_of(text))
    model.opset_imports.pop(_DOMAIN, None)


def _replace(model: ir.Model, node: ir.Node, part: OnnxSubgraph) -> None:
    opset = model.opset_imports[""]
    written = _in_opset(part, opset)
    ranks = {
        name: len(value.shape)
        for name, value in zip(part.inputs, node.inputs, strict=True)
        if value is not None and value.shape is not None
    }
    _write_all_dimensions(written.graph, ranks)
    inner = ir.from_proto(written)
    for domain, version in inner.opset_imports.items():
        model.opset_imports.setdefault(domain, version)
    graph = inner.graph
    for source, value in zip(node.inputs, graph.inputs, strict=True):
        assert source is not None
        ir.convenience.replace_all_uses_with(value, source)
    for name in list(graph.initializers):
        stored = graph.initializers.pop(name)
        stored.name = f"{node.outputs[0].name}/{name}"
        model.graph.register_initializer(stored)
    results = list(graph.outputs)
    for old, new in zip(node.outputs, results, strict=True):
        new.shape, new.type = old.shape, old.type
    nodes = list(graph)
    graph.outputs.clear()
    graph.remove(nodes)
    for each in nodes:
        each.metadata_props.update(node.metadata_props)
        for value in each.outputs:
            value.name = f"{node.outputs[0].name}/{value.name}" if value.name else value.name
    ir.convenience.replace_nodes_and_values(
        model.graph, node, [node], nodes, list(node.outputs), results
    )


def _in_opset(part: OnnxSubgraph, opset: int) -> onnx.ModelProto:
    """Return a copy of the part's model in an opset."""
    model, own = onnx.ModelProto(), _opset_of(part.model)
    model.CopyFrom(part.model)
    nodes = [n for n in nested_nodes(model.graph.node) if _own(n)]
    if all(_since(n.op_type, own) == _since(n.op_type, opset) for n in nodes):
        return model
    if own < _ROWS <= opset and [n.op_type for n in nodes] == ["Hardmax"]:
        _convert_hardmax(model)
        return model
    try:
        if own < _RESIZE and all(_same_up_to_resize(n, own) for n in nodes):
            nested = nested_nodes(model.graph.node)
            for graph in [model.graph, *(g for node in nested for g in inner_graphs(node))]:
                _convert_resize(graph)
            next(o for o in model.opset_import if o.domain in ("", "ai.onnx")).version = _RESIZE
        return version_converter.convert_version(model, opset)
    except Exception as error:
        raise ExportError(
            f"{model.graph.name} ({part.kind}) of opset {own} has no form in opset {opset}",
            OtherFile("convert the file with onnx.version_converter first"),
        ) from error


def _same_up_to_resize(node: onnx.NodeProto, own: int) -> bool:
    old = node.op_type in ("Upsample", "Resize") and len(node.input) <= 2
    return old or _since(node.op_type, own) == _since(node.op_type, _RESIZE)


def _convert_resize(graph: onnx.GraphProto) -> None:
    """Convert Upsample and Resize.

    Up to opset 10 positions are asymmetric, which the converter of onnx ignores.
    """
    for node in graph.node:
        if node.op_type not in ("Upsample", "Resize") or not _own(node):
            continue
        x, *scales = node.input
        if not scales:  # an attribute in the oldest opsets
            attribute = next(a for a in node.attribute if a.name == "scales")
            array = np.array(attribute.floats, np.float32)
            node.attribute.remove(attribute)
            scales = [f"{node.output[0]}/scales"]
            graph.initializer.append(onnx.numpy_helper.from_array(array, scales[0]))
        node.op_type = "Resize"
        node.input[:] = [x, "", *scales]
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        node.attribute.extend(helper.make_attribute(k, v) for k, v in modes.items())


def _convert_hardmax(model: onnx.ModelProto) -> None:
    """Write Hardmax between two reshapes, as it was defined; onnx has no converter for it."""
    (old,) = model.graph.node
    axis = next((a.i for a in old.attribute if a.name == "axis"), 1)
    x, y = old.input[0], old.output[0]
    shape, rows, hardmax = (f"{y}/{name}" for name in ("shape", "rows", "hardmax"))
    new = [
        helper.make_node("Shape", [x], [shape]),
        helper.make_node("Flatten", [x], [rows], axis=axis),
        helper.make_node("Hardmax", [rows], [hardmax], axis=1),
        helper.make_node("Reshape", [hardmax, shape], [y], old.name),
    ]
    del model.graph.node[:]
    model.graph.node.extend(new)
    next(o for o in model.opset_import if o.domain in ("", "ai.onnx")).version = _ROWS


def _opset_of(model: onnx.ModelProto) -> int:
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def _own(node: onnx.NodeProto) -> bool:
    return node.domain in ("", "ai.onnx")


def _is_deprecated(kind: str, opset: int) -> bool:
    try:
        return bool(onnx.defs.get_schema(kind, opset, "").deprecated)
    except onnx.defs.SchemaError:
        return False


def _since(kind: str, opset: int) -> int:
    """Return the version of an operator in an opset; 0 if the opset has none."""
    try:
        return int(onnx.defs.get_schema(kind, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


# It ignores `axes` there, permutes sizes of the axes alone as if they were of all dimensions, and
# refuses a cubic Resize that shrinks the middle dimensions.


def _write_all_dimensions(graph: onnx.GraphProto, ranks: Mapping[str, int]) -> None:
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

    def stored(name: str, array: Array) -> str:
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
