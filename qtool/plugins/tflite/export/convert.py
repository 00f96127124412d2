"""From the QDQ graph of a plan to a TFLite model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.errors import ExportError
from qtool.core.graph import FloatGraph, torch_ops
from qtool.core.operator_kinds import tensors_that_jump
from qtool.core.ops import row_of
from qtool.core.remedies import Argument
from qtool.core.types import ObserverSpec
from qtool.core.versions import own_version
from qtool.planning.node_decisions import operator_key
from qtool.planning.plan import QuantPlan
from qtool.planning.recipe import Recipe
from qtool.plugins.tflite.conversion_record import (
    DESCRIPTION,
    ENTRY,
    LAYOUT,
    METADATA,
    SOURCE,
    StoredPoint,
    record,
)
from qtool.plugins.tflite.export.calls import params_of, write_call
from qtool.plugins.tflite.export.elementwise import equal
from qtool.plugins.tflite.export.linear import find_split_outputs
from qtool.plugins.tflite.export.values import (
    PIXELS,
    Layout,
    Parts,
    Stored,
    Value,
    channels_last,
    identity,
)
from qtool.plugins.tflite.export.writer import Writer
from qtool.plugins.tflite.file import Model, PortNames, save

aten = torch.ops.aten

_RESIZES = frozenset(
    {
        aten.upsample_nearest2d.vec,
        aten._upsample_nearest_exact2d.vec,
        aten.upsample_bilinear2d.vec,
        aten.pixel_shuffle.default,
    }
)


@dataclass(frozen=True, eq=False)
class Written:
    """A model, and where the tensors of the graph are in it.

    Attributes:
        model: the model.
        points: name of codes in the QDQ graph -> their value.
        parts: name of codes in the QDQ graph -> the tensors that hold them together.
        discontinuous: names of codes and outputs that jump when the last bit of a float before
            them changes.
    """

    model: Model
    points: Mapping[str, Value]
    parts: Mapping[str, Parts]
    discontinuous: frozenset[str] = frozenset()


def to_tflite(
    module: fx.GraphModule,
    graph: G.FloatGraph,
    plan: QuantPlan,
    metadata: Mapping[str, Any],
    layout: Layout | None = None,
    info: Mapping[str, str] | None = None,
) -> Written:
    """Return the TFLite model of a QDQ graph.

    Args:
        module: the QDQ graph, see `lower_to_qdq`.
        graph: the float graph that it computes, for the names of inputs and outputs.
        plan: plan of the graph.
        metadata: JSON values that the file carries.
        layout: layout of inputs and outputs.
        info: description of the conversion, which the file carries to restore its model.

    Raises:
        ExportError: an operator cannot be written; names it.
    """
    layout = layout or Layout()
    writer = Writer(module, plan, _batch_symbols(module), layout.one_sample)
    if not layout.int8:
        writer.split_outputs = find_split_outputs(module, plan)
    inputs = _inputs(writer, graph, layout)
    for node in module.graph.nodes:
        if node.op == "get_attr":
            writer.values[node] = Stored(G.name_of(node), G.tensor(module, node).detach().cpu())
        elif node.op == "call_function":
            write_call(writer, node)
    if plan.placed and all(t.quantization is None for t in writer.builder.tensors):
        raise ExportError(
            "the file would hold no integers: qtool writes no TFLite layer with integer weights "
            "and float results",
            Argument("--mode", "static", "use {}"),
        )
    outputs = [
        _output(writer, node, name, layout)
        for node, name in zip(G.output_nodes(module.graph), graph.outputs, strict=True)
    ]
    orders = {"inputs": inputs, "outputs": outputs}
    layouts = {kind: [list(v.order) for v in values] for kind, values in orders.items()}
    entries = {METADATA: json.dumps({**metadata, LAYOUT: layouts}).encode()}
    if source := graph.metadata.to_json():
        entries[SOURCE] = json.dumps(source, ensure_ascii=False).encode()
    if info is not None:
        entries[ENTRY] = record(info, _stored_points(writer), writer.layers)
    model = Model(
        tuple(writer.builder.tensors),
        tuple(writer.builder.operators),
        tuple(v.index for v in inputs),
        tuple(v.index for v in outputs),
        description=DESCRIPTION,
        metadata=entries,
        names=PortNames(tuple(i.name for i in graph.inputs), tuple(graph.outputs)),
    )
    return _written(writer, without_unused(model))


def _written(writer: Writer, model: Model) -> Written:
    points = {
        G.name_of(n): v
        for n, v in writer.values.items()
        if n.target is torch_ops.quantize and isinstance(v, Value) and v.params is not None
    }
    jumping = tensors_that_jump((op.name, op.inputs, op.outputs) for op in model.operators)
    names = {name for name, value in points.items() if value.index in jumping}
    names |= {n for n, i in zip(model.names.outputs, model.outputs, strict=True) if i in jumping}
    return Written(model, points, writer.parts, frozenset(names))


def _stored_points(writer: Writer) -> dict[str, StoredPoint]:
    """Return where the point of each dequantize of the graph is in the file."""
    points: dict[str, StoredPoint] = dict(writer.dynamic_weights)
    for node, value in writer.values.items():
        if node.target is not torch_ops.dequantize:
            continue
        if isinstance(value, Value) and value.params is not None:
            place = StoredPoint(value.index)
        elif isinstance(value, Stored) and value.name in writer.constants:
            place = writer.constants[value.name]
        else:  # written with other parameters
            params = params_of(writer, node)
            scale, zero = params.scale.reshape(-1), params.zero_point.reshape(-1)
            numbers = tuple(scale.tolist()), tuple(zero.tolist())
            place = StoredPoint(-1, params.axis, scale=numbers[0], zero_point=numbers[1])
        points[G.name_of(node)] = place
    return points


def without_unused(model: Model) -> Model:
    """Leave out operators whose results nothing reads."""
    needed, kept = set(model.outputs), []
    for op in reversed(model.operators):
        if needed & set(op.outputs):
            needed |= set(op.inputs)
            kept.append(op)
    return replace(model, operators=tuple(reversed(kept)))


def gains_by_one_sample(graph: G.FloatGraph) -> bool:
    """Return whether a file for one sample is faster than one for batches of any size.

    TRANSPOSE_CONV takes the sizes of its result as an input. Where they are computed in the run,
    with the batch, XNNPACK leaves the operator to the slower kernels of LiteRT.
    """
    nodes = G.calls(graph.graph)
    return graph.batches_are_samples and any(operator_key(n) == "conv_transpose" for n in nodes)


def _batch_symbols(module: fx.GraphModule) -> frozenset[Any]:
    symbols: set[Any] = set()
    for node in G.placeholders(module.graph):
        shape = G.shape(node) if G.is_tensor(node) else ()
        if shape and isinstance(shape[0], torch.SymInt):
            symbols |= shape[0].node.expr.free_symbols
    return frozenset(symbols)


# --- inputs and outputs ------------------------------------------------------------------------


def _inputs(writer: Writer, graph: G.FloatGraph, layout: Layout) -> list[Value]:
    nodes = [n for n in G.placeholders(writer.module.graph) if G.is_tensor(n)]
    values = []
    for node, described in zip(nodes, graph.inputs, strict=True):
        rank = G.rank(node)
        order = channels_last(4) if layout.channels_last and _is_image(node) else identity(rank)
        quantizers = [u for u in node.users if u.target is torch_ops.quantize]
        params = params_of(writer, quantizers[0]) if quantizers else None
        same = all(equal(params_of(writer, q), params) for q in quantizers if params is not None)
        as_codes = layout.int8 and same and len(quantizers) == len(node.users) and bool(quantizers)
        if layout.int8 and _is_pixels(node):
            params, as_codes, quantizers = PIXELS, True, []
        value = writer.tensor_like(described.name, node, order, params if as_codes else None)
        writer.values[node] = value
        if as_codes:
            writer.values |= dict.fromkeys(quantizers, value)
        values.append(value)
    return values


def _is_pixels(node: fx.Node) -> bool:
    """Return whether an input of bytes is read as whole numbers, which are quantized at once."""
    casts = list(node.users)
    return G.value(node).dtype is torch.uint8 and all(
        cast.target is aten._to_copy.default
        and all(user.target is torch_ops.quantize for user in cast.users)
        for cast in casts
    )


def _is_image(node: fx.Node) -> bool:
    """Return whether operators on images read a tensor of rank 4, perhaps behind others."""
    queue, visited = [node], {node}
    while queue:
        for user in queue.pop().users:
            if user in visited or user.op != "call_function" or not G.is_tensor(user):
                continue
            visited.add(user)
            row = row_of(user)
            if user.target in _RESIZES or (row is not None and row.spatial):
                return G.rank(node) == 4
            same = str(G.shape(user)) == str(G.shape(node))
            through = row is not None or same  # no row: arithmetic of a normalization
            if through and G.rank(user) == 4 and user.target not in _REORDER:
                queue.append(user)
    return False


_REORDER = (aten.permute.default, aten.transpose.int)


def _output(writer: Writer, node: fx.Node, name: str, layout: Layout) -> Value:
    value = writer.values.get(node)
    if not isinstance(value, Value):
        value = writer.constant(value, identity(value.data.dim())) if value else _missing(node)
    if not (layout.int8 and value.params is not None):
        value = writer.floats(node)
    rank = len(value.sizes)
    keep = layout.channels_last and value.order == channels_last(4) and not value.columns
    value = value if keep else writer.in_order(value, identity(rank))
    tensor = writer.builder.tensors[value.index]
    if tensor.data is not None:
        raise ExportError(f"output '{name}' is a constant; TFLite files compute their outputs")
    return value


def _missing(node: fx.Node) -> Value:
    raise ExportError(f"output {G.name_of(node)} cannot be written to TFLite")


def write_float(graph: FloatGraph, path: str | Path, target_name: str) -> Path:
    """Write the canonical graph in float, and return the path.

    Raises:
        ExportError: an operator cannot be written.
        FileError: the file cannot be written.
    """
    plan = QuantPlan(target_name, ObserverSpec("minmax"), Recipe(), (), ())
    layout = Layout(one_sample=gains_by_one_sample(graph))
    save(to_tflite(graph.module, graph, plan, {"version": own_version()}, layout).model, path)
    return Path(path)
