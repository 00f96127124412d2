"""From a float ONNX file to the float graph: the file as an nn.Module, captured like any other.

Names of inputs, outputs, weights and nodes are those of the file; a dimension that the file leaves
open is dynamic, one that it fixes is fixed. What depends on constants alone is calculated when the
file is read, and a product with a constant matrix becomes the linear layer it was.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.nn import functional as F

from qtool import graph as G
from qtool.capture.module import capture_module
from qtool.capture.onnx_functions import Call
from qtool.capture.onnx_operators import OPERATORS, SIZES, Row, plain
from qtool.capture.program import first_line
from qtool.data import Batch
from qtool.errors import CaptureError

__all__ = ["OnnxModule", "capture_onnx", "load_onnx"]

_LINEAR = "qtool.Linear"
_ROWS: Mapping[str, Row] = {**OPERATORS, _LINEAR: plain(F.linear)}
_SCALARS = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "Less"})
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization"})
_STEP = re.compile(r"steps\.(\d+)(?:\.(.*))?")
_LARGE = 2**24  # constants are not calculated beyond this many values: an Expand of one, say


@dataclass(frozen=True)
class _Node:
    """One operator to run; `label` is its readable name."""

    label: str
    op: str
    call: Call
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class _Step(nn.Module):
    """A module of its own for each node, so that torch.export tells them apart."""

    def __init__(self, node: _Node) -> None:
        super().__init__()
        self.node = node

    def forward(self, *values: Any) -> Any:
        return _ROWS[self.node.op].function(self.node.call, *values)


class OnnxModule(nn.Module):
    """The network of a file. Its arguments are the inputs of the file, in order or by name.

    inputs: name -> its type in the file. outputs: names. dynamic: input -> {dimension: name}.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        constants, nodes = _simplified(model)
        graph = model.graph
        self.outputs = tuple(o.name for o in graph.output)
        self.inputs = {i.name: i.type.tensor_type for i in graph.input if i.name not in constants}
        self.dynamic = {name: _open_dims(t) for name, t in self.inputs.items()}
        self.arguments = dict(zip(_identifiers(self.inputs), self.inputs, strict=True))
        self.nodes = nodes
        self.known = constants
        self.attributes: dict[str, str] = {}  # constant -> attribute that holds it as a tensor
        for node in nodes:
            row = _ROWS[node.op]
            for i, name in enumerate(node.inputs):
                if name in constants and i not in row.known and name not in self.attributes:
                    self._hold(name, constants[name], i not in row.fixed)
        self.steps = nn.ModuleList(_Step(n) for n in nodes)
        self.forward = _with_parameters(self._run, list(self.arguments))

    def _hold(self, name: str, array: np.ndarray[Any, Any], trained: bool) -> None:
        attribute = G.free_name(self, name)
        data = torch.from_numpy(np.array(array))
        if trained and data.is_floating_point():
            self.register_parameter(attribute, nn.Parameter(data))
        else:
            self.register_buffer(attribute, data)
        self.attributes[name] = attribute

    def _run(self, *inputs: torch.Tensor) -> Any:
        values: dict[str, Any] = {"": None, **self.known}
        values.update(zip(self.inputs, inputs, strict=True))
        for node, step in zip(self.nodes, self.steps, strict=True):
            given = [values[n] for n in node.inputs]
            arrays = [v for v in given if v is not None]
            if node.op in SIZES and arrays and all(isinstance(v, np.ndarray) for v in arrays):
                found = SIZES[node.op](node.call, *given)
            else:
                known = _ROWS[node.op].known
                found = step(*(self._value(node, i, v, known) for i, v in enumerate(given)))
            results = found if isinstance(found, tuple) else (found,)
            values.update(zip(node.outputs, results, strict=False))
        outputs = tuple(values[n] for n in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _value(self, node: _Node, index: int, value: Any, known: tuple[int, ...]) -> Any:
        """A value as an operator takes it: sizes known, constants as tensors."""
        if index in known:
            if isinstance(value, torch.Tensor):
                raise node.call.refuse(f"its input '{node.inputs[index]}' is computed from data")
            return value
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype == object:
            if value.size == 1:
                return value.item()
            if all(isinstance(v, int) for v in value.ravel()):
                return torch.tensor(value.tolist())
            raise node.call.refuse("calculates with sizes as if they were data")
        if value.ndim == 0 and node.op in _SCALARS:
            return value.item()
        if node.op == "Gather" and index == 1 and value.ndim == 0:
            return value
        return getattr(self, self.attributes[node.inputs[index]])


def load_onnx(path: str | Path) -> OnnxModule:
    """The network of a float ONNX file, in eval mode.

    Raises:
        CaptureError: not a readable ONNX file, quantized already, or with operators that are not
            supported; names them.
    """
    file = Path(path)
    if not file.is_file():
        raise CaptureError(f"{file}: no such file")
    try:
        model = inline_local_functions(onnx.load(file))
    except Exception as error:
        raise CaptureError(f"{file}: not a readable ONNX file ({first_line(error)})") from error
    quantized = next((n for n in model.graph.node if n.op_type in _QUANTIZED), None)
    if quantized is not None:
        raise CaptureError(
            f"{file}: the file is quantized already ({quantized.op_type} at "
            f"{_label(quantized)}); give the float one"
        )
    unknown = {_key(n): _label(n) for n in model.graph.node if _key(n) not in OPERATORS}
    unknown.pop("Constant", None)
    if unknown:
        listed = ", ".join(f"{op} (at {where})" for op, where in unknown.items())
        raise CaptureError(
            f"{file}: operators that qtool cannot read: {listed}; convert the model from PyTorch "
            "instead, where every operator of torch can stay in float"
        )
    try:
        return OnnxModule(model).eval()
    except CaptureError as error:
        raise CaptureError(f"{file}: {error}") from error


def capture_onnx(
    model: OnnxModule, example: Batch, dynamic: Mapping[str, Mapping[int, str]] | None = None
) -> G.FloatGraph:
    """The float graph, with the names of the file.

    Args:
        example: one batch; by position, or by the names of the file's inputs.
        dynamic: as for `capture_module`; by default what the file leaves open.

    Raises:
        CaptureError: the batch does not fit the file, or torch.export cannot trace the model.
    """
    batch = Batch(_in_order(model, example))
    for (name, kind), tensor in zip(model.inputs.items(), batch.args, strict=True):
        _check(name, kind, tensor, model.dynamic if dynamic is None else dynamic)
    names = {old: new for new, old in model.arguments.items()}
    wanted = model.dynamic if dynamic is None else dynamic
    graph = capture_module(model, batch, {names.get(n, n): axes for n, axes in wanted.items()})
    graph.inputs = tuple(G.Input(model.arguments[i.name], i.dtype, i.shape) for i in graph.inputs)
    graph.outputs = model.outputs
    _name_nodes(graph, model)
    return graph


def _name_nodes(graph: G.FloatGraph, model: OnnxModule) -> None:
    weights = {attribute: name for name, attribute in model.attributes.items()}
    last: dict[str, str] = {}  # step -> the name of the call that gives its result
    for node in G.calls(graph.graph):
        if found := _STEP.fullmatch(G.name_of(node)):
            last[found[1]] = G.name_of(node)
    taken: Counter[str] = Counter()
    for node in graph.graph.nodes:
        old = G.name_of(node)
        found = _STEP.fullmatch(old)
        if node.op == "placeholder":
            new = model.arguments[str(node.target)]
        elif found and node.op == "call_function":
            label = model.nodes[int(found[1])].label
            new = label if last[found[1]] == old else f"{label}.{found[2]}"
        else:
            new = weights.get(old, old)
        taken[new] += 1
        node.meta[G.NAME] = new if taken[new] == 1 else f"{new}_{taken[new]}"


def _in_order(model: OnnxModule, example: Batch) -> tuple[torch.Tensor, ...]:
    given = dict(zip(model.inputs, example.args, strict=False)) | example.kwargs
    if set(given) != set(model.inputs) or len(given) != len(example.args) + len(example.kwargs):
        raise CaptureError(
            f"the batch gives {', '.join(given) or 'nothing'}; the inputs of the file are "
            f"{', '.join(model.inputs)}"
        )
    return tuple(given[n] for n in model.inputs)


def _check(name: str, kind: Any, tensor: torch.Tensor, dynamic: Mapping[str, Any]) -> None:
    wanted = str(np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)))
    sizes: list[int | str] = [
        d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim
    ]
    fits = len(sizes) == tensor.dim() and all(
        isinstance(s, str) or s == n or axis in dynamic.get(name, {})
        for axis, (s, n) in enumerate(zip(sizes, tensor.shape, strict=True))
    )
    if not fits or str(tensor.dtype).removeprefix("torch.") != wanted:
        raise CaptureError(
            f"input '{name}' of the file is {wanted}{sizes}, the batch gives "
            f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}; give batches of that "
            "form, or export the file with a dynamic batch"
        )


# --- reading ---------------------------------------------------------------------------------


def _simplified(model: onnx.ModelProto) -> tuple[dict[str, Any], tuple[_Node, ...]]:
    """Constants by name, and the nodes that are left to run."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    constants: dict[str, Any] = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    readers = Counter(name for n in model.graph.node for name in set(n.input))
    readers.update(o.name for o in model.graph.output)
    nodes: list[_Node] = []
    for proto in model.graph.node:
        if proto.op_type == "Constant" or _is_constant(proto, constants):
            values = _evaluated(proto, constants, model)
            constants.update(zip(proto.output, values, strict=True))
            continue
        attributes = {a.name: _attribute(a) for a in proto.attribute}
        label = _label(proto)
        call = Call(label, attributes, len(proto.output), opset)
        node = _Node(label, _key(proto), call, tuple(proto.input), tuple(proto.output))
        node = _as_linear(node, constants)
        if not _takes_bias(nodes, node, constants, readers):
            nodes.append(node)
    return constants, tuple(nodes)


def _is_constant(node: onnx.NodeProto, constants: Mapping[str, Any]) -> bool:
    inputs = [n for n in node.input if n]
    size = sum(constants[n].size for n in inputs if n in constants)
    grows = node.op_type in ("ConstantOfShape", "Expand", "Tile", "Range") and size > _LARGE
    return bool(inputs) and all(n in constants for n in inputs) and not grows


def _evaluated(
    node: onnx.NodeProto, constants: Mapping[str, Any], model: onnx.ModelProto
) -> list[Any]:
    inputs = [n for n in dict.fromkeys(node.input) if n]
    outputs = [onnx.ValueInfoProto(name=o) for o in node.output]
    given = [helper.make_empty_tensor_value_info(n) for n in inputs]
    graph = helper.make_graph([node], "constant", given, outputs)
    one = helper.make_model(graph, opset_imports=model.opset_import)
    try:
        found = ReferenceEvaluator(one).run(None, {n: constants[n] for n in inputs})
    except Exception as error:
        raise CaptureError(
            f"{_label(node)} ({node.op_type}) of constants cannot be calculated: "
            f"{first_line(error)}"
        ) from error
    return [np.asarray(v) for v in found]


def _as_linear(node: _Node, constants: dict[str, Any]) -> _Node:
    """A product with a constant matrix as a linear layer, whose weight is [out, in]."""
    if node.op not in ("MatMul", "Gemm") or node.inputs[1] not in constants:
        return node
    weight, get = constants[node.inputs[1]], node.call.get
    plain = get("alpha", 1.0) == get("beta", 1.0) == 1.0 and not get("transA", 0)
    bias = constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if weight.ndim != 2 or not plain or (len(node.inputs) > 2 and (bias is None or bias.ndim != 1)):
        return node
    name = node.inputs[1]
    if not get("transB", 0):
        name += ".transposed"
        constants.setdefault(name, np.ascontiguousarray(weight.T))
    inputs = (node.inputs[0], name, *node.inputs[2:])
    return _Node(node.label, _LINEAR, node.call, inputs, node.outputs)


def _takes_bias(
    nodes: list[_Node], node: _Node, constants: Mapping[str, Any], readers: Mapping[str, int]
) -> bool:
    """Whether `node` adds a constant vector to the linear layer right before it: its bias."""
    before = nodes[-1] if nodes else None
    if node.op != "Add" or before is None or before.op != _LINEAR or len(before.inputs) > 2:
        return False
    result = before.outputs[0]
    others = [n for n in node.inputs if n != result]
    bias = constants.get(others[0]) if len(others) == 1 else None
    outputs = constants[before.inputs[1]].shape[0]
    if bias is None or bias.shape != (outputs,) or readers[result] != 1:
        return False
    inputs = (*before.inputs, others[0])
    nodes[-1] = _Node(before.label, _LINEAR, before.call, inputs, node.outputs)
    return True


def _key(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _label(node: onnx.NodeProto) -> str:
    """The module where the exporter kept it: torch.onnx in metadata, its predecessor in the name,
    `/layer1/layer1.0/conv1/Conv` for layer1.0.conv1. Else the node's name."""
    notes = {p.key: p.value for p in node.metadata_props if p.key.startswith("pkg.torch.onnx")}
    scopes, kinds = (
        ast.literal_eval(notes.get(f"pkg.torch.onnx.{key}", "[]"))
        for key in ("name_scopes", "class_hierarchy")
    )
    if len(scopes) > 1 and scopes[-2] and len(kinds) == len(scopes):
        leaf = str(kinds[-2]).startswith("torch.nn.modules.")
        return str(scopes[-2]) if leaf else f"{scopes[-2]}.{node.op_type.lower()}"
    kept: list[str] = []
    for part in (node.name or node.output[0]).split("/"):
        if kept and part.startswith(f"{kept[-1]}."):
            kept[-1] = part
        elif part:
            kept.append(part)
    if len(kept) > 1 and re.fullmatch(rf"{node.op_type}(_\d+)?", kept[-1]):
        last = kept.pop()  # a layer has its module's name; a relu may be any of that module's
        kept += [] if node.op_type in _LAYERS else [last.lower()]
    return ".".join(kept)


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _open_dims(kind: Any) -> dict[int, str]:
    dims = enumerate(kind.shape.dim)
    return {
        axis: d.dim_param or ("batch" if axis == 0 else f"dim{axis}")
        for axis, d in dims
        if not d.HasField("dim_value")
    }


def _identifiers(names: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name in names:
        base = G.free_name(nn.Module(), name)
        found.append(base if base not in found else f"{base}_{len(found)}")
    return found


def _with_parameters(run: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """`run` with named parameters, as torch.export reads them."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(n, kind) for n in names])

    def forward(*args: Any, **kwargs: Any) -> Any:
        return run(*signature.bind(*args, **kwargs).arguments.values())

    forward.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it
    return forward
