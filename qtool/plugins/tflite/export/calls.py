"""Calls of the QDQ graph: on codes as the plan says, moved, or in float."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.errors import ExportError
from qtool.core.graph import FloatGraph, torch_ops
from qtool.core.graph.file_parts import part_kind
from qtool.core.ops import Role, row_of
from qtool.core.quant_params import QuantParams, storage_qtype
from qtool.core.types import Bounds
from qtool.planning.plan import Execution
from qtool.planning.targets.rules import RECURRENT
from qtool.plugins.tflite.export import elementwise, layers, moves
from qtool.plugins.tflite.export.elementwise import equal
from qtool.plugins.tflite.export.float_operators import FLOAT, ON_CODES_TOO
from qtool.plugins.tflite.export.graph_builder import quantization
from qtool.plugins.tflite.export.values import Stored, Value
from qtool.plugins.tflite.export.writer import Writer, activation

aten = torch.ops.aten

Write = Callable[[Writer, fx.Node, QuantParams, Bounds], Value]

INTEGER: Mapping[str, Write] = {
    **ON_CODES_TOO,
    "add": elementwise.binary("ADD"),
    "concat": elementwise.concat,
    "mul": elementwise.binary("MUL"),
    "prelu": elementwise.prelu,
}
"""Operator key -> writer of its kernel on codes."""


_INT8_MOVES = frozenset({aten.pixel_shuffle.default, aten.amax.default, aten.amin.default})
"""Operators that move codes of 8 bits; of 16 bits in float, which holds them."""


def write_call(writer: Writer, node: fx.Node) -> None:
    """Write one call, unless it was written with the operator before it.

    Raises:
        ExportError: it cannot be written; names it.
    """
    if node in writer.values or not G.is_tensor(node):
        return  # written with the operator before it; a size
    if (constant := _constant(writer, node)) is not None:
        writer.values[node] = constant
        return
    if node.target is torch_ops.quantize:
        writer.values[node] = _quantize(writer, node)
    elif node.target is torch_ops.dequantize:
        writer.values[node] = _dequantize(writer, node)
    elif (decision := writer.plan.decision(G.name_of(node))) is not None and (
        decision.execution is Execution.INTEGER
    ):
        _integer(writer, node)
    elif _is_skipped_clamp(writer, node):
        return
    else:
        writer.values[node] = _move(writer, node) or _float(writer, node)


def _constant(writer: Writer, node: fx.Node) -> Stored | None:
    """Compute what depends on constants alone; None if it depends on an input."""
    if node.target in (torch_ops.quantize, torch_ops.dequantize):
        return None
    if any(isinstance(G.value(n), tuple | list) for n in node.all_input_nodes):
        return None  # one of several results
    sources = [writer.values.get(n) for n in node.all_input_nodes if G.is_tensor(n)]
    if not all(isinstance(s, Stored) for s in sources):
        return None
    inside = any(isinstance(s, Stored) and s.follows_batch for s in sources)
    follows = inside or any(writer.is_dynamic(s) for s in G.shape(node))
    if follows and not inside and node.target is aten.expand.default:
        return None  # repeated in the run, for each sample of the batch

    def value(argument: Any) -> Any:
        if not isinstance(argument, fx.Node):
            return argument
        stored = writer.values.get(argument)
        return stored.real() if isinstance(stored, Stored) else writer.number(argument)

    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), value)
    with torch.no_grad():
        data = G.run_operator(node, args, kwargs)
    return Stored(G.name_of(node), data, follows_batch=follows)


def params_of(writer: Writer, node: fx.Node) -> QuantParams:
    """Return the parameters of a quantize or dequantize."""
    scale, zero = (G.tensor(writer.module, G.source(node, i)) for i in (1, 2))
    return QuantParams(
        storage_qtype(zero.dtype),
        scale.detach().cpu(),
        zero.detach().cpu().to(torch.int64),
        G.argument(node, 3, "axis"),
    )


def _quantize(writer: Writer, node: fx.Node) -> Value:
    params, value = params_of(writer, node), writer.as_tensor(node.args[0])
    if value.params is not None:
        return elementwise.requantized(
            writer, value, params, value_names.tensor_of(G.name_of(node))
        )
    new = writer.tensor(G.name_of(node), value.sizes, value.dynamic, value.order, params)
    return writer.emit("QUANTIZE", [value], replace(new, columns=value.columns))


def _dequantize(writer: Writer, node: fx.Node) -> Value | Stored:
    codes = writer.argument(node.args[0])
    if isinstance(codes, Stored):
        return replace(codes, params=params_of(writer, node))
    return codes


def _integer(writer: Writer, node: fx.Node) -> None:
    """Write an operator on codes, with its clamp, for each quantization of its result."""
    row = row_of(node)
    assert row is not None
    write = INTEGER.get(row.key)
    if write is None:
        raise ExportError(f"{G.name_of(node)}: {row.key} on codes cannot be written to TFLite")
    for clamp, quantizer in _quantizers(node):
        params = params_of(writer, quantizer)
        clamp_row = None if clamp is None else row_of(clamp)
        bounds = (None, None) if clamp is None or clamp_row is None else clamp_row.bounds(clamp)
        known = next((v for v in _written(writer, node) if equal(_known(v), params)), None)
        value = known or _clamped(writer, write(writer, node, params, bounds), bounds)
        _rename(writer, value, value_names.tensor_of(G.name_of(quantizer)))
        if clamp is not None:
            writer.layers[value.index] = G.name_of(node)
        writer.values[quantizer] = value


def _written(writer: Writer, node: fx.Node) -> Iterator[Value]:
    for _, quantizer in _quantizers(node):
        value = writer.values.get(quantizer)
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


def _is_skipped_clamp(writer: Writer, node: fx.Node) -> bool:
    row = row_of(node)
    source = node.args[0] if node.args else None
    return (
        row is not None
        and row.role is Role.CLIP
        and isinstance(source, fx.Node)
        and source not in writer.values
        and bool(node.users)
        and all(u in writer.values for u in node.users)
    )


def _clamped(writer: Writer, value: Value, bounds: Bounds) -> Value:
    """Write bounds that no operator fuses and that the codes do not have, as MAXIMUM, MINIMUM."""
    if activation(bounds) or bounds == (None, None):
        return value
    params = _known(value)
    for kind, bound, end in (("MAXIMUM", bounds[0], 0), ("MINIMUM", bounds[1], 1)):
        if bound is None:
            continue
        code = round(float(torch.tensor(bound, dtype=torch.float32) / params.scale)) + int(
            params.zero_point
        )
        if (code <= params.qtype.qmin) if end == 0 else (code >= params.qtype.qmax):
            continue
        array = np.array([code], params.qtype.numpy_dtype)
        constant = writer.builder.constant("bound", array, quantization(params))
        title = f"{writer.builder.tensors[value.index].name}.{kind.lower()}"
        new = writer.tensor(title, value.sizes, value.dynamic, value.order, params)
        value = writer.emit(kind, [value, constant], new, 2)
    return value


def _rename(writer: Writer, value: Value, title: str) -> None:
    """Name a tensor after the one that the model has there: of a clamp instead of its layer."""
    tensor = writer.builder.tensors[value.index]
    if tensor.name != title and title not in {t.name for t in writer.builder.tensors[-4:]}:
        writer.builder.tensors[value.index] = replace(tensor, name=title)


def _move(writer: Writer, node: fx.Node) -> Value | None:
    """Write an operator that moves elements, on codes where they are; None for others."""
    row = row_of(node)
    if node.target is torch_ops.max_pool:
        return layers.max_pool(writer, node)
    if node.target is torch_ops.rescale:
        return _rescale(writer, node)
    if row is not None and row.role is Role.JOIN:
        parts = [writer.as_tensor(n) for n in G.sources(node)]
        first = parts[0].params
        on_codes = first is not None and all(
            p.params is not None and equal(p.params, first) for p in parts
        )
        if not on_codes:
            parts = [writer.floats(n) for n in G.sources(node)]
        return moves.concat(writer, node, parts, int(G.argument(node, 1, "dim", 0)))
    move = moves.MOVES.get(node.target)
    if move is None:
        return None
    x = writer.as_tensor(node.args[0])
    fills = node.target is aten.constant_pad_nd.default and G.argument(node, 2, "value", 0)
    wide = x.params is not None and x.params.qtype.bits > 8
    if fills or (wide and node.target in _INT8_MOVES):
        x = writer.floats(node.args[0])
    return move(writer, node, x)


def _rescale(writer: Writer, node: fx.Node) -> Value | None:
    """Give codes another scale, by a RESHAPE to the same sizes; None for floats."""
    x = writer.as_tensor(node.args[0])
    if x.params is None or x.columns:
        return None
    factor = G.number(node, 1)
    params = replace(x.params, scale=x.params.scale * factor)
    quantizers = [u for u in node.users if u.target is torch_ops.quantize]
    params = params_of(writer, quantizers[0]) if quantizers else params
    new = writer.tensor(G.name_of(node), x.sizes, x.dynamic, x.order, params)
    writer.reshape(x, new)
    return new


def _float(writer: Writer, node: fx.Node, whole: fx.Node | None = None) -> Value | Stored:
    """Write an operator in float; `whole` is the one that torch made it of."""
    write = FLOAT.get(node.target)
    if write is not None:
        return write(writer, node)
    if whole is None and (parts := decomposed(node)) is not None:
        return _decomposed(writer, node, parts)
    raise ExportError(_no_operator(node, whole))


def check_writable(graph: FloatGraph) -> None:
    """Check that no operator is of those that no TFLite file can hold, whatever the plan.

    They are operators with several results, and those that were kept from an ONNX file.

    Raises:
        ExportError: there is one; names it.
    """
    for node in G.calls(graph.graph):
        if node.target is operator.getitem and G.is_tensor(node) and node.users:
            raise ExportError(_no_operator(node))


def _no_operator(node: fx.Node, whole: fx.Node | None = None) -> str:
    """Return the sentence on an operator without a TFLite operator; see `_float`."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]  # the operator, of which this is a result
    if (kept := part_kind(node)) is not None:
        kind = f"the ONNX operator {kept}, in a form that qtool keeps from the file,"
    else:
        kind = (
            str(getattr(node.target, "_schema", node.target)).split("(")[0].removeprefix("qtool::")
        )
    made = "" if whole is None else ", which torch makes of it,"
    way = "rewrite this part of the model"
    if kind in RECURRENT:
        way = "give a model of one step (LSTMCell, GRUCell) with its state as input and output"
    return (
        f"{G.name_of(whole or node)}: {kind}{made} has no TFLite operator that qtool writes; "
        f"{way}, or write an .onnx file"
    )


def _decomposed(writer: Writer, node: fx.Node, parts: fx.Graph) -> Value | Stored:
    """Write an operator as those that torch makes of it."""
    tensors = [n for n in node.all_input_nodes if G.is_tensor(n)]
    for placeholder, source in zip(G.placeholders(parts), tensors, strict=True):
        writer.values[placeholder] = writer.values[source]
    for part in parts.nodes:
        part.meta[G.NAME] = f"{G.name_of(node)}/{part.name}"
        if part.op == "call_function" and G.is_tensor(part):
            constant = _constant(writer, part)
            writer.values[part] = constant or _move(writer, part) or _float(writer, part, node)
    return writer.values[G.output_nodes(parts)[0]]


def decomposed(node: fx.Node) -> fx.Graph | None:
    """Return the graph of one call in core operators, its inputs in the order of the call's.

    None where torch has no simpler form.
    """
    tensors = [n for n in node.all_input_nodes if G.is_tensor(n)]
    place = {n: i for i, n in enumerate(tensors)}

    def call(*values: torch.Tensor) -> Any:
        def value(argument: fx.Node) -> Any:
            return values[place[argument]] if argument in place else G.value(argument)

        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), value)
        return G.run_operator(node, args, kwargs)

    fakes = [G.value(n) for n in tensors]
    mode = next((f.fake_mode for f in fakes if hasattr(f, "fake_mode")), None)
    if mode is None:
        return None
    try:
        with mode:
            table: Any = core_aten_decompositions()
            parts = make_fx(call, decomposition_table=table)(*fakes)
    except Exception:  # noqa: BLE001  # torch's, by operator
        return None
    calls = [n for n in parts.graph.nodes if n.op == "call_function"]
    same = any(n.target is node.target for n in calls)
    constants = any(n.op == "get_attr" for n in parts.graph.nodes)
    return None if same or constants else parts.graph
