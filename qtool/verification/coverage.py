"""The integer coverage audit: what really runs in integer kernels.

The graph as optimised by ONNX Runtime is read back, and every convolution, matrix product, add,
concat and pool of the file is looked up in it. The runtime keeps node names when it fuses (with a
suffix of its own); where it does not, the node is found by the tensor it computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from qtool.onnx_graph import names
from qtool.onnx_graph.file_info import FileInfo
from qtool.onnx_graph.storage import outline
from qtool.ops import OPS
from qtool.plan import Execution, QuantPlan
from qtool.runtimes.onnxruntime import RUNTIME, without_suffix
from qtool.verification.artefact import Artefact

__all__ = ["AuditRow", "Coverage", "audit", "planned"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


AUDITED = _names(
    "Conv ConvTranspose Gemm MatMul MatMulNBits Add Mul Concat AveragePool MaxPool"
    " GlobalAveragePool GlobalMaxPool Einsum LSTM GRU RNN"
)
INTEGER = _names(
    "QLinearConv QGemm QLinearMatMul MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul"
    " ConvInteger QLinearAdd QLinearMul QLinearConcat QLinearAveragePool QLinearGlobalAveragePool"
    " QLinearSigmoid QLinearLeakyRelu QLinearSoftmax QLinearWhere"
)
ON_EITHER = _names(  # operators that exist for codes and for floats
    "MaxPool NhwcMaxPool Transpose Reshape Slice Pad Concat Squeeze Unsqueeze Flatten Split Gather"
    " Expand Resize DepthToSpace Tile Identity"
)
ON_WEIGHTS = _names("MatMulNBits")  # integer weights under float inputs and results
_TAKE_IN = _names("DynamicQuantizeMatMul MatMulIntegerToFloat MatMulNBits")  # a scale, a bias
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_MOVES = ("ReorderOutput", "Transpose")  # added by the runtime behind a kernel
_DATA = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8, TensorProto.INT8)
_WEIGHT = {  # operators with MACs -> where their weight stands
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul", "ConvInteger", "MatMulInteger"), 1),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), 3),
}
_HEAVY = frozenset(_WEIGHT) | _names("MatMulNBits MatMulIntegerToFloat Einsum LSTM GRU RNN")


@dataclass(frozen=True)
class AuditRow:
    """One operator of the file: `kernel` is what the runtime runs for it, in integers, or on
    integer weights alone."""

    name: str
    op: str
    kernel: str
    integer: bool
    macs: int
    reason: str
    weights_only: bool = False


@dataclass(frozen=True)
class Coverage:
    """The audit of one file."""

    runtime: str
    rows: tuple[AuditRow, ...]

    @property
    def macs(self) -> int:
        return sum(r.macs for r in self.rows)

    @property
    def share(self) -> float:
        """Share of multiply-accumulates in integer kernels, 0 to 1; 1 where there are none."""
        return sum(r.macs for r in self.rows if r.integer) / self.macs if self.macs else 1.0

    @property
    def weight_share(self) -> float:
        """Share of multiply-accumulates on integer weights whose inputs and results are float."""
        return sum(r.macs for r in self.rows if r.weights_only) / self.macs if self.macs else 0.0

    @property
    def float_rows(self) -> tuple[AuditRow, ...]:
        return tuple(r for r in self.rows if not r.integer)

    def to_json(self) -> dict[str, Any]:
        return {
            "runtime": self.runtime,
            "integer_mac_share": self.share,
            "integer_weight_mac_share": self.weight_share,
            "macs": self.macs,
            "rows": [asdict(r) for r in self.rows],
        }

    def __str__(self) -> str:
        done = len(self.rows) - len(self.float_rows)
        head = (
            f"{done} of {len(self.rows)} operators and {100 * self.share:.2f} % of "
            f"{self.macs / 1e6:.2f} M MACs run in integer kernels ({self.runtime})"
        )
        if self.weight_share:
            head += f"; {100 * self.weight_share:.2f} % of the MACs on integer weights alone"
        rows = [
            f"  {'weights only' if r.weights_only else 'float'}: {r.name} ({r.op} -> {r.kernel}): "
            f"{r.reason}"
            for r in self.float_rows
        ]
        return "\n".join([head, *rows])


def audit(file: Artefact | str | Path) -> Coverage:
    """The integer coverage of an ONNX file, made by qtool or not.

    Raises:
        FileError: not an ONNX file. VerificationError: the runtime does not load it.
    """
    artefact = Artefact.of(file)
    source, running = artefact.model, _Running(artefact.running)
    shapes = _Shapes(source)
    planned = _planned(source)
    audited = (
        node
        for node in source.graph.node
        if node.op_type in INTEGER
        or _is_own(node)
        or (node.op_type in AUDITED and shapes.is_data(node.output[0]))
    )
    found = [(node, _name_in(node, planned)) for node in audited]
    heavy = Counter(name for node, name in found if node.op_type in _HEAVY)
    rows = (
        _row(node, name, heavy[name], source, running, shapes, planned.get(name, {}))
        for node, name in found
        if node.op_type in _HEAVY or not (name in planned and heavy[name])
    )
    return Coverage(RUNTIME, tuple(r for r in rows if r is not None))


def planned(plan: QuantPlan) -> Coverage:
    """What a plan says of each node, for a target whose runtime is not the one audited here."""
    known = {row.key for row in OPS.values()}
    rows = tuple(
        AuditRow(d.node, d.op, "as planned", d.computes_on_codes, d.macs, d.reason)
        for d in plan.nodes
        if d.computes_on_codes
        or d.execution is Execution.WEIGHTS
        or (d.execution is Execution.FLOAT and d.op in known)
    )
    return Coverage(f"as planned for {plan.target}, not audited on this machine", rows)


def _name_in(node: onnx.NodeProto, planned: Mapping[str, Any]) -> str:
    """The operator of the plan that a node is, or is a part of; else its own name."""
    name = names.operator_of(node.name, node.op_type)
    return name if name in planned else node.name


def _row(
    node: onnx.NodeProto,
    name: str,
    parts: int,
    source: onnx.ModelProto,
    running: _Running,
    shapes: _Shapes,
    plan: Mapping[str, Any],
) -> AuditRow | None:
    """None where the runtime takes the node into the kernel of a matrix product: that has a row.

    `parts`: how many nodes with MACs the operator is written as; they share what is planned for it.
    """
    found = running.find(node, source)
    kernel = found.op_type if found is not None else "folded away"
    if _is_own(node):  # the runtime runs what its function says
        stored = plan.get("form") == "weights"
        reason = plan.get("reason", f"an operator of the domain {node.domain}")
        macs = int(plan.get("macs", 0))
        return AuditRow(name, node.op_type, node.domain, False, macs, reason, stored)
    if node.op_type in ("Add", "Mul") and kernel in _TAKE_IN:
        return None
    if found is None:  # taken into another kernel: a convolution only where codes are planned
        integer = bool(plan) or node.op_type not in _WEIGHT
    else:
        integer = running.is_integer(found)
    integer = integer and plan.get("form") not in ("float", "weights")
    macs = int(plan["macs"]) // max(parts, 1) if plan else shapes.macs(node)
    reason = "" if integer else plan.get("reason") or _why_float(node, source)
    stored = kernel in ON_WEIGHTS or plan.get("form") == "weights"
    return AuditRow(name, node.op_type, kernel, integer, macs, reason, stored)


def _is_own(node: onnx.NodeProto) -> bool:
    """Whether an operator is neither ONNX's nor the runtime's."""
    return node.domain not in _DOMAINS


def _planned(source: onnx.ModelProto) -> dict[str, Mapping[str, Any]]:
    """What qtool's plan says of each node, if the file is its own."""
    info = FileInfo.of(source)
    return {} if info is None else {n.node: vars(n) for n in info.nodes}


def _why_float(node: onnx.NodeProto, source: onnx.ModelProto) -> str:
    """For a file of unknown origin: what is missing around the node."""
    makers = {o: n.op_type for n in source.graph.node for o in n.output}
    constants = {i.name for i in source.graph.initializer}
    for name in node.input[:2]:
        if name in constants and node.op_type in _WEIGHT:
            return f"its weight {name} is stored as float"
        if name not in constants and makers.get(name) != "DequantizeLinear":
            return f"its input {name} is not quantized"
    readers = {n.op_type for n in source.graph.node if node.output[0] in n.input}
    if not readers & {"QuantizeLinear", "Relu", "Clip"}:
        return "its output is not quantized"
    return f"{RUNTIME} has no integer kernel for this form"


class _Running:
    """The optimised graph, with look-ups by the names of the file."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes: dict[str, onnx.NodeProto] = {
            without_suffix(n.name): n for n in model.graph.node if n.name
        }
        self.makers: dict[str, onnx.NodeProto] = {o: n for n in model.graph.node for o in n.output}
        self.by_output: dict[str, onnx.NodeProto] = {
            without_suffix(o): n for o, n in self.makers.items()
        }
        self.types = {i.name: i.data_type for i in model.graph.initializer}
        self.types |= {i.name: i.type.tensor_type.elem_type for i in model.graph.input}

    def find(self, node: onnx.NodeProto, source: onnx.ModelProto) -> onnx.NodeProto | None:
        """The node that computes `node`: by name, else by what it or its followers compute."""
        if node.name in self.nodes:
            return self.nodes[node.name]
        name, steps = node.output[0], 0
        while steps < 8:
            if name in self.by_output:
                return self._behind(self.by_output[name])
            readers = [n for n in source.graph.node if name in n.input]
            if len(readers) != 1:
                return None
            name, steps = readers[0].output[0], steps + 1
        return None

    def _behind(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node whose result `node` only brings into another layout."""
        while node.op_type in _MOVES and node.input[0] in self.makers:
            node = self.makers[node.input[0]]
        return node

    def is_integer(self, node: onnx.NodeProto) -> bool:
        if node.op_type in INTEGER:
            return True
        return node.op_type in ON_EITHER and self._codes(node.input[0])

    def _codes(self, name: str) -> bool:
        if name in self.types:
            return self.types[name] in (TensorProto.UINT8, TensorProto.INT8)
        maker = self.makers.get(name)
        if maker is None:
            return False
        if maker.op_type in ON_EITHER:
            return self._codes(maker.input[0])
        return maker.op_type == "QuantizeLinear" or maker.op_type.startswith("QLinear")


def _one_sample(model: onnx.ModelProto) -> onnx.ModelProto:
    """An outline whose dynamic dimensions are 1, so that sizes computed from them are inferred."""
    fixed = outline(model)
    del fixed.graph.value_info[:]
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in fixed.graph.input:
        for size in value.type.tensor_type.shape.dim:
            size.dim_value = size.dim_value or 1
    return fixed


class _Shapes:
    """Inferred types and shapes of a file; a dynamic dimension counts as 1."""

    def __init__(self, model: onnx.ModelProto) -> None:
        try:
            graph = onnx.shape_inference.infer_shapes(_one_sample(model), data_prop=True).graph
        except Exception:  # noqa: BLE001  # a custom operator: what is not inferred is left out
            graph = model.graph
        self.shapes: dict[str, list[int]] = {}
        self.types: dict[str, int] = {}
        for value in [*graph.value_info, *graph.input, *graph.output]:
            tensor = value.type.tensor_type
            self.types[value.name] = tensor.elem_type
            self.shapes[value.name] = [max(1, d.dim_value) for d in tensor.shape.dim]
        for initializer in graph.initializer:
            self.shapes[initializer.name] = list(initializer.dims)
            self.types[initializer.name] = initializer.data_type

    def is_data(self, name: str) -> bool:
        """Floats or codes, not sizes and indices."""
        return self.types.get(name, TensorProto.FLOAT) in _DATA

    def macs(self, node: onnx.NodeProto) -> int:
        """MACs of one sample; 0 where the shape cannot be inferred (behind an unknown operator)."""
        if node.op_type == "MatMulNBits":  # shape inference does not know it; one row per sample
            return prod(a.i for a in node.attribute if a.name in ("K", "N"))
        position = _WEIGHT.get(node.op_type, len(node.input))
        if position >= len(node.input) or node.input[position] not in self.shapes:
            return 0
        weight, out = self.shapes[node.input[position]], self.shapes.get(node.output[0])
        if node.op_type == "ConvTranspose":
            return prod(weight) * prod(self.shapes.get(node.input[0], [])[2:])
        if node.op_type == "QGemm":  # shape inference does not know it; one row per sample
            return prod(weight)
        if out is None:
            return 0
        if node.op_type in ("Conv", "QLinearConv", "ConvInteger"):
            return prod(weight) * prod(out[2:])
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        depth = weight[-1] if transposed else weight[-2] if len(weight) > 1 else weight[0]
        return prod(out) * depth
