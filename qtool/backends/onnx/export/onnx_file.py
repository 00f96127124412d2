"""From a torch graph to an ONNX model with the user's names."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters
from onnx_ir.passes.common import (
    LiftConstantsToInitializersPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
)
from onnxscript.optimizer import fold_constants
from torch import fx

from qtool.backends.onnx.export.exported_program import to_program
from qtool.backends.onnx.export.kept_parts import PART_TRANSLATIONS, inline_parts, needed_opset
from qtool.backends.onnx.export.torch_exporter import translate
from qtool.backends.onnx.export.workarounds import ONNX_WORKAROUNDS
from qtool.backends.onnx.operators import functions_of, writers
from qtool.backends.onnx.operators.schemas import TorchOperator, Writer
from qtool.backends.onnx.origin import write_source_metadata
from qtool.backends.runtime import Workaround, apply_workarounds
from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.errors import ExportError
from qtool.core.graph.deferred import is_deferred
from qtool.core.value_names import unique

_WORD = re.compile(r"\w+")  # a symbol in a size expression

_IR_VERSION = 10  # of ONNX files
_TORCH = str(Path(torch.__file__).parent) + os.sep
_NO_FORM = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)', overload='(\w+)'\)>")
_LINE = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*(\S.*)')
_COMPLEX = (
    "compute with separate real and imaginary parts (torch.view_as_real), or move the complex "
    "computation out of the model"
)
_OTHER = "use operators that have one, or add one with qtool.register_operator"


def to_onnx(
    module: fx.GraphModule,
    graph: G.FloatGraph,
    opset: int,
    metadata: Mapping[str, str],
    contrib: bool = True,
    workarounds: Sequence[Workaround] = ONNX_WORKAROUNDS,
    store: Callable[[ir.Model], None] = lambda _: None,
) -> onnx.ModelProto:
    """Return the ONNX model of a graph (QDQ or float).

    Inputs, outputs, nodes and initializers have the names of the user's model, and the file has the
    metadata of the user's; paths and source lines that the exporter adds are removed.

    Args:
        module: the graph to write.
        graph: the float graph that it was lowered from.
        opset: lowest operator set of the file.
        metadata: keys and values for the file.
        contrib: allow operators of ONNX Runtime's own domain.
        workarounds: those that the file needs.
        store: takes weights out of the model before it is serialized as one message.

    Raises:
        ExportError: an operator cannot be written; names it.
    """
    table: dict[TorchOperator, Writer] = {**writers(contrib), **PART_TRANSLATIONS}
    try:
        model = translate(to_program(module, graph), table, needed_opset(module, opset))
    except Exception as error:
        raise ExportError(
            f"the model cannot be written as ONNX: {describe_export_error(module.graph, error)}"
        ) from error
    _read_when_needed(model, module)
    _add_functions(model)
    inline_parts(model)
    _simplify(model)
    _rename(model, module, graph)
    apply_workarounds(model, workarounds)
    model.ir_version = _IR_VERSION
    model.producer_name = "qtool"
    for key, text in metadata.items():
        model.metadata_props[key] = text
    store(model)
    proto = ir.to_proto(model)
    write_source_metadata(proto, graph.metadata)
    return proto


def _read_when_needed(model: ir.Model, module: fx.GraphModule) -> None:
    """Let deferred tensors be read when the model is written."""
    for node in module.graph.nodes:
        stored = G.tensor(module, node) if node.op == "get_attr" else None
        value = model.graph.initializers.get(str(node.target))
        if stored is not None and value is not None and is_deferred(stored):
            known = value.const_value
            assert known is not None
            shape = ir.Shape(known.shape.numpy())
            value.const_value = ir.LazyTensor(
                partial(_values, stored), known.dtype, shape, name=known.name
            )


def _values(stored: torch.Tensor) -> ir.TensorProtocol:
    return tensor_adapters.TorchTensor(G.read_values(stored))


def _add_functions(model: ir.Model) -> None:
    """Add the functions that define custom operators."""
    for proto in functions_of((n.domain, n.op_type) for n in model.graph):
        function = ir.serde.deserialize_function(proto)
        model.functions[function.identifier()] = function
        model.opset_imports.setdefault(proto.domain, 1)


def _simplify(model: ir.Model) -> None:
    """Fold shape arithmetic (no weights: what dequantizes them stays) and drop unused nodes."""
    for node in model.graph:
        for value in node.outputs:  # a name of the exporter may equal that of a weight
            if value.name in model.graph.initializers:
                value.name = f"{value.name}/{node.op_type}"
    with suppress(RuntimeError):  # raised for splits of computed sizes, which stay
        fold_constants(model, onnx_shape_inference=False, should_fold=_is_shape_arithmetic)
    for each in (
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        RemoveUnusedNodesPass(),
        RemoveUnusedOpsetsPass(),
    ):
        each(model)


def _is_shape_arithmetic(node: ir.Node) -> bool | None:
    if node.op_type in ("DequantizeLinear", "QuantizeLinear"):
        return False
    source = node.inputs[0] if node.op_type == "Cast" else None
    narrow = source is not None and source.dtype in (ir.DataType.INT8, ir.DataType.UINT8)
    return False if narrow else None  # codes of a weight


def _rename(model: ir.Model, module: fx.GraphModule, graph: G.FloatGraph) -> None:
    """Give values the names of the user's model.

    Inputs and outputs keep their exact names; an inner value of the same name gets another one.
    """
    taken = {*(spec.name for spec in graph.inputs), *graph.outputs}
    outputs = list(model.graph.outputs)
    _rename_nodes(model, graph, taken)
    readable = {str(n.target): G.name_of(n) for n in module.graph.nodes if n.op == "get_attr"}
    stored = list(model.graph.initializers.items())
    for i, (_, value) in enumerate(stored):  # so that no old name blocks a new one
        value.name = f"/{i}"
    for old, value in stored:
        value.metadata_props.clear()
        value.name = unique(readable.get(old, old), taken)
        taken.add(value.name)
    for value, spec in zip(model.graph.inputs, graph.inputs, strict=True):
        value.name = spec.name
        value.metadata_props.clear()
        _readable_dims(value, graph.dims)
    _rename_outputs(model, outputs, graph.outputs)
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.graph.name = "qtool"


def _rename_nodes(model: ir.Model, graph: G.FloatGraph, taken: set[str]) -> None:
    """Name nodes and their outputs, except the graph's outputs; adds the names to `taken`."""
    groups: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        groups.setdefault(_scope(node), []).append(node)
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
            _readable_dims(value, graph.dims)
    wanted: list[tuple[ir.Value, str]] = []
    for name, nodes in groups.items():
        for node in nodes[:-1]:  # helper nodes of one operator: a shape, a cast
            node.name = value_names.helper(name, node.op_type, str(node.outputs[0].name))
            wanted += [
                (v, value_names.helper(name, node.op_type, str(v.name))) for v in node.outputs
            ]
        nodes[-1].name = name
        outputs = nodes[-1].outputs
        several = len(outputs) > 1  # named as the results of getitem
        wanted += [(v, f"{name}.{i}" if several else name) for i, v in enumerate(outputs)]
    for value, name in wanted:
        if not value.is_graph_output():
            value.name = unique(name, taken)
            taken.add(value.name)


def _scope(node: ir.Node) -> str:
    """Return the name of the operator that a node was written for (see exported_program.py)."""
    scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
    known = [s for s in scopes if not s.startswith("_empty_nn_module_stack")]  # nodes of torch
    return str(known[0]) if known else str(node.outputs[0].name)


def _rename_outputs(model: ir.Model, outputs: list[ir.Value], wanted: tuple[str, ...]) -> None:
    """Name the outputs of the graph.

    A value returned twice and an input returned unchanged go through an Identity.
    """
    returned: set[int] = set()
    for position, (value, name) in enumerate(zip(outputs, wanted, strict=True)):
        if id(value) in returned or value.is_graph_input():
            node = ir.Node("", "Identity", [value], name=f"Identity:{name}")
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            model.graph.append(node)
            model.graph.outputs[position] = node.outputs[0]
            value = node.outputs[0]
        returned.add(id(value))
        value.name = name


def _readable_dims(value: ir.Value, dims: Mapping[str, str]) -> None:
    if value.shape is None:
        return
    shape = value.shape.copy()  # that of several values is frozen
    for axis, size in enumerate(shape):
        if isinstance(size, ir.SymbolicDim) and size.value is not None:
            named = _WORD.sub(lambda match: dims.get(match[0], match[0]), size.value)
            known = dims.get(size.value, _in_order(named))
            shape[axis] = int(known) if known.isdecimal() else known
    value.shape = shape


def _in_order(expression: str) -> str:
    """Return a size with the terms of a sum in alphabetical order: equal sizes are equal."""
    terms = expression.split(" + ")
    return " + ".join(sorted(terms)) if all(map(str.isidentifier, terms)) else expression


def describe_export_error(graph: fx.Graph, error: BaseException) -> str:
    """Return in one sentence what torch.onnx raised.

    For an operator without ONNX form it names the first call and its line. For other errors it is
    the innermost cause, since torch.onnx wraps errors several times; a line that ends in a colon is
    joined with the next one.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = " ".join(line.strip() for line in lines[: 1 + lines[0].endswith(":")])
    match = _NO_FORM.search(text)
    target = ".".join(match.groups()) if match else ""
    node = next((n for n in G.calls(graph) if str(n.target) == target), None)
    if node is None and match is not None:
        word = match[1].rpartition(".")[2].strip("_")  # an operator is named like its decomposition
        node = next((n for n in G.calls(graph) if word in str(n.target)), None)
        target = target if node is None else str(node.target)
    if node is None:
        return text if match is None else f"{target} has no ONNX form; {_OTHER}"
    where = f" at {line}" if (line := _line(node)) else ""
    remedy = _COMPLEX if any(map(_is_complex, (node, *node.all_input_nodes))) else _OTHER
    return f"{G.name_of(node)} ({target}{where}) has no ONNX form; {remedy}"


def _line(node: fx.Node) -> str:
    """Return the innermost line outside of torch, as FILE:LINE: CODE; "" if unknown."""
    lines = _LINE.findall(str(node.meta.get("stack_trace", "")))
    own = [line for line in lines if not line[0].startswith(_TORCH)]
    return "{}:{}: {}".format(*own[-1]) if own else ""


def _is_complex(node: fx.Node) -> bool:
    return G.is_tensor(node) and bool(G.value(node).is_complex())
