"""From the QDQ graph of a plan to a TFLite model."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx

from qtool.backends.tflite.export import elementwise, layers, moves
from qtool.backends.tflite.export.elementwise import equal
from qtool.backends.tflite.export.float_operators import FLOAT
from qtool.backends.tflite.export.graph_builder import quantization
from qtool.backends.tflite.export.values import Layout, Stored, Value, channels_last, identity
from qtool.backends.tflite.export.writer import Writer, activation
from qtool.backends.tflite.file import Model
from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.errors import ExportError
from qtool.core.graph import torch_ops
from qtool.core.ops import Role, row_of
from qtool.core.types import Bounds, QuantParams, storage_qtype
from qtool.planning.plan import Execution, QuantPlan

aten = torch.ops.aten

METADATA = "qtool"
"""Name of the metadata of files of qtool: JSON."""

_IMAGES = frozenset(
    {
        torch_ops.conv,
        torch_ops.conv_transpose,
        torch_ops.max_pool,
        torch_ops.average_pool,
        torch_ops.global_average_pool,
        aten.upsample_nearest2d.vec,
        aten._upsample_nearest_exact2d.vec,
        aten.upsample_bilinear2d.vec,
        aten.pixel_shuffle.default,
    }
)

_DISCONTINUOUS = frozenset(
    [
        *("ARG_MAX", "ARG_MIN", "CAST", "CEIL", "EQUAL", "FLOOR", "GREATER", "GREATER_EQUAL"),
        *("LESS", "LESS_EQUAL", "NOT_EQUAL", "ROUND"),
    ]
)
"""Operators whose results jump when the last bit of an input changes."""

Write = Callable[[Writer, fx.Node, QuantParams, Bounds], Value]

INTEGER: Mapping[str, Write] = {
    "add": elementwise.binary("ADD"),
    "average_pool": layers.average_pool,
    "concat": elementwise.concat,
    "conv": layers.conv,
    "conv_transpose": layers.conv_transpose,
    "gelu": elementwise.unary(
        "GELU", 2, approximate=lambda n: G.argument(n, 1, "approximate", "none") == "tanh"
    ),
    "global_average_pool": layers.global_average_pool,
    "hard_swish": elementwise.unary("HARD_SWISH", 1),
    "leaky_relu": elementwise.unary(
        "LEAKY_RELU", 2, alpha=lambda n: float(G.argument(n, 1, "negative_slope", 0.01))
    ),
    "linear": layers.linear,
    "matmul": elementwise.matmul,
    "mul": elementwise.binary("MUL"),
    "prelu": elementwise.prelu,
    "sigmoid": elementwise.unary("LOGISTIC", 2),
    "softmax": elementwise.softmax,
    "tanh": elementwise.unary("TANH", 2),
}
"""Operator key -> writer of its kernel on codes."""


@dataclass(frozen=True, eq=False)
class Written:
    """A model, and where the tensors of the graph are in it.

    Attributes:
        model: the model.
        points: name of codes in the QDQ graph -> their value.
        discontinuous: names of codes and outputs that jump when the last bit of a float before
            them changes.
    """

    model: Model
    points: Mapping[str, Value]
    discontinuous: frozenset[str] = frozenset()


def to_tflite(
    module: fx.GraphModule,
    graph: G.FloatGraph,
    plan: QuantPlan,
    metadata: Mapping[str, Any],
    layout: Layout | None = None,
    fixed: bool = False,
) -> Written:
    """Return the TFLite model of a QDQ graph.

    Args:
        module: the QDQ graph, see `lower_to_qdq`.
        graph: the float graph that it computes, for the names of inputs and outputs.
        plan: of the graph.
        metadata: JSON values that the file carries.
        layout: of inputs and outputs.
        fixed: every size is fixed and the batch is 1, as microcontrollers need it.

    Raises:
        ExportError: an operator cannot be written; names it.
    """
    layout = layout or Layout()
    w = Writer(module, plan, _batch_symbols(module), fixed)
    inputs = _inputs(w, graph, layout)
    for node in module.graph.nodes:
        if node.op == "get_attr":
            w.values[node] = Stored(str(node.target), G.tensor(module, node).detach().cpu())
        elif node.op == "call_function":
            _call(w, node)
    outputs = [
        _output(w, node, name, layout)
        for node, name in zip(G.output_nodes(module.graph), graph.outputs, strict=True)
    ]
    orders = {
        "inputs": [list(v.order) for v in inputs],
        "outputs": [list(v.order) for v in outputs],
    }
    text = json.dumps({**metadata, "layout": orders})
    model = Model(
        tuple(w.builder.tensors),
        tuple(w.builder.operators),
        tuple(v.index for v in inputs),
        tuple(v.index for v in outputs),
        description="qtool",
        metadata={METADATA: text.encode()},
        input_names=tuple(i.name for i in graph.inputs),
        output_names=tuple(graph.outputs),
    )
    points = {
        G.name_of(n): v
        for n, v in w.values.items()
        if n.target is torch_ops.quantize and isinstance(v, Value)
    }
    model = _without_unused(model)
    jumping = _discontinuous(model)
    names = {name for name, value in points.items() if value.index in jumping}
    names |= {n for n, i in zip(graph.outputs, model.outputs, strict=True) if i in jumping}
    return Written(model, points, frozenset(names))


def _discontinuous(model: Model) -> set[int]:
    """Return the tensors that depend on a discontinuous operator after the last quantization."""
    jumping: set[int] = set()
    for op in model.operators:
        if op.name in _DISCONTINUOUS or (op.name != "DEQUANTIZE" and jumping & set(op.inputs)):
            jumping |= set(op.outputs)
    return jumping


def _without_unused(model: Model) -> Model:
    """Leave out operators whose results nothing reads."""
    needed, kept = set(model.outputs), []
    for op in reversed(model.operators):
        if needed & set(op.outputs):
            needed |= set(op.inputs)
            kept.append(op)
    return replace(model, operators=tuple(reversed(kept)))


def _batch_symbols(module: fx.GraphModule) -> frozenset[Any]:
    symbols: set[Any] = set()
    for node in G.placeholders(module.graph):
        shape = G.shape(node) if G.is_tensor(node) else ()
        if shape and isinstance(shape[0], torch.SymInt):
            symbols |= shape[0].node.expr.free_symbols
    return frozenset(symbols)


# --- inputs and outputs ------------------------------------------------------------------------


def _inputs(w: Writer, graph: G.FloatGraph, layout: Layout) -> list[Value]:
    nodes = [n for n in G.placeholders(w.module.graph) if G.is_tensor(n)]
    values = []
    for node, described in zip(nodes, graph.inputs, strict=True):
        rank = G.rank(node)
        order = channels_last(4) if layout.channels_last and _is_image(node) else identity(rank)
        quantizers = [u for u in node.users if u.target is torch_ops.quantize]
        params = _params(w, quantizers[0]) if quantizers else None
        same = all(equal(_params(w, q), params) for q in quantizers if params is not None)
        as_codes = layout.int8 and same and len(quantizers) == len(node.users) and bool(quantizers)
        value = w.new(described.name, node, order, params if as_codes else None)
        w.values[node] = value
        if as_codes:
            w.values |= dict.fromkeys(quantizers, value)
        values.append(value)
    return values


def _is_image(node: fx.Node) -> bool:
    """Return whether operators on images read a tensor of rank 4, perhaps behind others."""
    queue, visited = [node], {node}
    while queue:
        for user in queue.pop().users:
            if user in visited or user.op != "call_function" or not G.is_tensor(user):
                continue
            visited.add(user)
            if user.target in _IMAGES:
                return G.rank(node) == 4
            row = row_of(user)
            through = user.target in (torch_ops.quantize, torch_ops.dequantize) or row is not None
            if through and G.rank(user) == 4 and user.target not in _REORDER:
                queue.append(user)
    return False


_REORDER = (aten.permute.default, aten.transpose.int)


def _output(w: Writer, node: fx.Node, name: str, layout: Layout) -> Value:
    value = w.values.get(node)
    if not isinstance(value, Value):
        value = w.stored(value, identity(value.data.dim())) if value else _missing(node)
    if not (layout.int8 and value.params is not None):
        value = w.floats(node)
    rank = len(value.sizes)
    keep = layout.channels_last and value.order == channels_last(4) and not value.columns
    value = value if keep else w.in_order(value, identity(rank))
    tensor = w.builder.tensors[value.index]
    if tensor.data is not None:
        raise ExportError(f"output '{name}' is a constant; TFLite files compute their outputs")
    return value


def _missing(node: fx.Node) -> Value:
    raise ExportError(f"output {G.name_of(node)} cannot be written to TFLite")


# --- calls -------------------------------------------------------------------------------------


def _call(w: Writer, node: fx.Node) -> None:
    if node in w.values or not G.is_tensor(node):
        return  # written with the operator before it; a size
    if (constant := _constant(w, node)) is not None:
        w.values[node] = constant
        return
    if node.target is torch_ops.quantize:
        w.values[node] = _quantize(w, node)
    elif node.target is torch_ops.dequantize:
        w.values[node] = _dequantize(w, node)
    elif (decision := w.plan.decision(G.name_of(node))) is not None and (
        decision.execution is Execution.INTEGER
    ):
        _integer(w, node)
    elif _is_skipped_clamp(w, node):
        return
    else:
        w.values[node] = _move(w, node) or _float(w, node)


def _constant(w: Writer, node: fx.Node) -> Stored | None:
    """Compute what depends on constants alone; None if it depends on an input."""
    if node.target in (torch_ops.quantize, torch_ops.dequantize):
        return None
    sources = [w.values.get(n) for n in node.all_input_nodes if G.is_tensor(n)]
    if not all(isinstance(s, Stored) for s in sources):
        return None
    if any(w.is_dynamic(s) for s in G.shape(node)):
        raise ExportError(
            f"{G.name_of(node)}: a constant of the size of the batch cannot be written"
        )

    def value(argument: Any) -> Any:
        if not isinstance(argument, fx.Node):
            return argument
        stored = w.values.get(argument)
        return stored.real() if isinstance(stored, Stored) else w.number(argument)

    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), value)
    with torch.no_grad():
        return Stored(G.name_of(node), node.target(*args, **kwargs))  # type: ignore[operator]  # it is called


def _params(w: Writer, node: fx.Node) -> QuantParams:
    """Return the parameters of a quantize or dequantize."""
    scale, zero = (G.tensor(w.module, n) for n in node.args[1:3])  # type: ignore[arg-type]  # nodes
    axis = node.args[3] if len(node.args) > 3 else None
    return QuantParams(
        storage_qtype(zero.dtype),
        scale.detach().cpu(),
        zero.detach().cpu().to(torch.int64),
        axis,  # type: ignore[arg-type]  # a number or None
    )


def _quantize(w: Writer, node: fx.Node) -> Value:
    params, value = _params(w, node), w.computed(node.args[0])
    if value.params is not None:
        return elementwise.requantized(w, value, params, value_names.tensor_of(G.name_of(node)))
    source = node.args[0]
    is_input = isinstance(source, fx.Node) and source.op == "placeholder"  # has the name itself
    title = G.name_of(node) if is_input else value_names.tensor_of(G.name_of(node))
    new = w.add(title, value.sizes, value.dynamic, value.order, params)
    return w.emit("QUANTIZE", [value], replace(new, columns=value.columns))


def _dequantize(w: Writer, node: fx.Node) -> Value | Stored:
    codes = w.argument(node.args[0])
    if isinstance(codes, Stored):
        return replace(codes, params=_params(w, node))
    return codes


def _integer(w: Writer, node: fx.Node) -> None:
    """Write an operator on codes, with its clamp, for each quantization of its result."""
    row = row_of(node)
    assert row is not None
    write = INTEGER.get(row.key)
    if write is None:
        raise ExportError(f"{G.name_of(node)}: {row.key} on codes cannot be written to TFLite")
    for clamp, quantizer in _quantizers(node):
        params = _params(w, quantizer)
        clamp_row = None if clamp is None else row_of(clamp)
        bounds = (None, None) if clamp is None or clamp_row is None else clamp_row.bounds(clamp)
        known = next((v for v in _written(w, node) if equal(_known(v), params)), None)
        value = known or _clamped(w, write(w, node, params, bounds), bounds)
        _rename(w, value, value_names.tensor_of(G.name_of(quantizer)))
        w.values[quantizer] = value


def _written(w: Writer, node: fx.Node) -> Iterator[Value]:
    for _, quantizer in _quantizers(node):
        value = w.values.get(quantizer)
        if isinstance(value, Value):
            yield value


def _known(value: Value) -> QuantParams:
    assert value.params is not None
    return value.params


def _quantizers(node: fx.Node) -> list[tuple[fx.Node | None, fx.Node]]:
    """Return the quantizations of a result, each with the clamp before it."""
    pairs: list[tuple[fx.Node | None, fx.Node]] = []
    for user in node.users:
        row = row_of(user)
        if user.target is torch_ops.quantize:
            pairs.append((None, user))
        elif row is not None and row.role is Role.CLIP:
            quantized = [u for u in user.users if u.target is torch_ops.quantize]
            if len(quantized) != len(user.users):
                raise ExportError(f"{G.name_of(user)} is read in float behind an integer operator")
            pairs += [(user, q) for q in quantized]
        else:
            raise ExportError(f"{G.name_of(node)} is read in float, which its kernel cannot write")
    return pairs


def _is_skipped_clamp(w: Writer, node: fx.Node) -> bool:
    row = row_of(node)
    source = node.args[0] if node.args else None
    return (
        row is not None
        and row.role is Role.CLIP
        and isinstance(source, fx.Node)
        and source not in w.values
        and bool(node.users)
        and all(u in w.values for u in node.users)
    )


def _clamped(w: Writer, value: Value, bounds: Bounds) -> Value:
    """Write bounds that no operator fuses and that the codes do not have, as MAXIMUM, MINIMUM."""
    if activation(bounds) or bounds == (None, None):
        return value
    params = _known(value)
    for kind, bound, end in (("MAXIMUM", bounds[0], 0), ("MINIMUM", bounds[1], 1)):
        if bound is None:
            continue
        code = round(float(torch.tensor(bound) / params.scale)) + int(params.zero_point)
        if (code <= params.qtype.qmin) if end == 0 else (code >= params.qtype.qmax):
            continue
        array = np.array([code], params.qtype.numpy_dtype)
        constant = w.builder.constant("bound", array, quantization(params))
        title = f"{w.builder.tensors[value.index].name}.{kind.lower()}"
        new = w.add(title, value.sizes, value.dynamic, value.order, params)
        value = w.emit(kind, [value, constant], new, 2)
    return value


def _rename(w: Writer, value: Value, title: str) -> None:
    """Name a tensor after the one that the model has there: of a clamp instead of its layer."""
    tensor = w.builder.tensors[value.index]
    if tensor.name != title and title not in {t.name for t in w.builder.tensors[-4:]}:
        w.builder.tensors[value.index] = replace(tensor, name=title)


def _move(w: Writer, node: fx.Node) -> Value | None:
    """Write an operator that moves elements, on codes where they are; None for others."""
    row = row_of(node)
    if node.target is torch_ops.max_pool:
        return layers.max_pool(w, node, None, (None, None))
    if node.target is torch_ops.rescale:
        return _rescale(w, node)
    if row is not None and row.role is Role.JOIN:
        parts = [w.computed(n) for n in node.args[0]]  # type: ignore[union-attr]  # a list
        first = parts[0].params
        on_codes = first is not None and all(
            p.params is not None and equal(p.params, first) for p in parts
        )
        if not on_codes:
            parts = [w.floats(n) for n in node.args[0]]  # type: ignore[union-attr]  # a list
        return moves.concat(w, node, parts, int(G.argument(node, 1, "dim", 0)))
    move = moves.MOVES.get(node.target)
    if move is None:
        return None
    x = w.computed(node.args[0])
    if node.target is aten.constant_pad_nd.default and G.argument(node, 2, "value", 0):
        x = w.floats(node.args[0]) if x.params is not None else x
    return move(w, node, x)


def _rescale(w: Writer, node: fx.Node) -> Value | None:
    """Give codes another scale, by a RESHAPE to the same sizes; None for floats."""
    x = w.computed(node.args[0])
    if x.params is None or x.columns:
        return None
    factor = float(node.args[1])  # type: ignore[arg-type]  # a number
    params = replace(x.params, scale=x.params.scale * factor)
    quantizers = [u for u in node.users if u.target is torch_ops.quantize]
    params = _params(w, quantizers[0]) if quantizers else params
    new = w.add(G.name_of(node), x.sizes, x.dynamic, x.order, params)
    w.reshape(x, new)
    return new


def _float(w: Writer, node: fx.Node) -> Value | Stored:
    write = FLOAT.get(node.target)
    if write is None:
        if node.target is operator.getitem:
            raise ExportError(f"{G.name_of(node)}: a result of several cannot be written to TFLite")
        kind = str(getattr(node.target, "_schema", node.target)).split("(")[0]
        raise ExportError(
            f"{G.name_of(node)}: {kind} has no TFLite operator that qtool writes; rewrite this "
            "part of the model, or write an .onnx file"
        )
    return write(w, node)
