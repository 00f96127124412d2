"""The integer coverage audit: what really runs in integer kernels.

The graph as optimised by ONNX Runtime is read back, and every convolution, matrix product, add,
concat and pool of the file is looked up in it. The runtime keeps node names when it fuses (with a
suffix of its own); where it does not, the node is found by the tensor it computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from qtool.backends.onnx.file_info import FileInfo
from qtool.backends.onnx.reading import (
    OnnxModel,
    attributes_of,
    graph_of,
    input_at,
    is_constant,
    name_of,
)
from qtool.backends.onnx.storage import load_outline
from qtool.backends.onnxruntime.session import RUNTIME, without_suffix
from qtool.backends.runtime import ExecutedKernel, Runtime
from qtool.core import value_names
from qtool.core.ops import OPS
from qtool.core.ops.onnx_mac_counts import MAC_FORMULAS, WEIGHT_INPUT, onnx_macs
from qtool.planning.plan import Decision, Execution, QuantPlan
from qtool.verification.duplicate_nodes import find_duplicates
from qtool.verification.exported_file import ExportedFile


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


AUDITED = _names(
    "Conv ConvTranspose Gemm MatMul MatMulNBits Add Mul Concat AveragePool MaxPool"
    " GlobalAveragePool GlobalMaxPool Einsum LSTM GRU RNN DynamicQuantizeLSTM"
)
INTEGER = _names(
    "QLinearConv QGemm QLinearMatMul MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul"
    " ConvInteger DynamicQuantizeLSTM"
    " QLinearAdd QLinearMul QLinearConcat QLinearAveragePool QLinearGlobalAveragePool"
    " QLinearSigmoid QLinearLeakyRelu QLinearSoftmax QLinearWhere"
)
ON_EITHER = _names(  # operators that exist for codes and for floats
    "MaxPool NhwcMaxPool Transpose Reshape Slice Pad Concat Squeeze Unsqueeze Flatten Split Gather"
    " Expand Resize DepthToSpace Tile Identity"
)
ON_WEIGHTS = _names("MatMulNBits")  # integer weights under float inputs and results
_ON_CODES = 4  # accuracy_level: inputs are rounded to int8 in blocks, products are integer
_TAKE_IN = _names("DynamicQuantizeMatMul MatMulIntegerToFloat MatMulNBits")  # a scale, a bias
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_AFFINE = ("Add", "BatchNormalization", "Div", "Mul", "Sub")
_MOVES = ("ReorderOutput", "Transpose")  # added by the runtime behind a kernel
_DATA = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.UINT8, ir.DataType.INT8)


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
            weights = f"{100 * self.weight_share:.2f} % of the MACs"
            head += f"; {weights} use integer weights and float activations"
        rows = [
            f"  {'weights only' if r.weights_only else 'float'}: {r.name} ({r.op} -> {r.kernel}): "
            f"{r.reason}"
            for r in self.float_rows
        ]
        return "\n".join([head, *rows])


def audit(file: ExportedFile | str | Path) -> Coverage:
    """The integer coverage of an ONNX file, made by qtool or not.

    Raises:
        FileError: not an ONNX file. VerificationError: the runtime does not load it.
    """
    exported = ExportedFile.of(file)
    source, running = exported.file, _Running(graph_of(exported.executed_graph))
    shapes = _Shapes(source.outline)
    planned = _planned(source)
    audited = (
        node
        for node in source.nodes
        if node.op_type in INTEGER
        or _is_own(node)
        or (node.op_type in AUDITED and shapes.is_data(node.outputs[0]))
    )
    found = [(node, _name_in(node, planned)) for node in audited]
    heavy = Counter(name for node, name in found if node.op_type in MAC_FORMULAS)
    rows = (
        _row(node, name, heavy[name], source, running, shapes, planned.get(name, {}))
        for node, name in found
        if node.op_type in MAC_FORMULAS or not (name in planned and heavy[name])
    )
    return Coverage(RUNTIME, tuple(r for r in rows if r is not None))


def planned_coverage(plan: QuantPlan) -> Coverage:
    """What a plan says of each node, for a target whose runtime cannot be asked here."""
    rows = tuple(
        AuditRow(d.node, d.op, "as planned", d.computes_on_codes, d.macs, d.reason)
        for d in _operators(plan)
    )
    return Coverage(f"as planned for {plan.target}, not audited on this machine", rows)


def executed_coverage(path: str | Path, plan: QuantPlan, runtime: Runtime) -> Coverage:
    """What a runtime runs for each node of a plan: its own word, of a file made by that plan.

    Raises:
        VerificationError: the runtime does not take the file.
    """
    assert runtime.executed_kernels is not None
    kernels = {name: kernel for kernel in runtime.executed_kernels(path) for name in kernel.nodes}
    nodes = {str(n.name): n for n in graph_of(load_outline(path)) if n.outputs}
    alike = find_duplicates(nodes.values())
    rows, taken_in = [], set[str]()
    for d in _operators(plan):
        kernel = _kernel_of(nodes.get(d.node), d.node, kernels)
        if kernel is None and d.node in alike:
            kernel = _kernel_of(None, alike[d.node], kernels)
        behind = _affine_behind(nodes.get(d.node)) if kernel is None and d.macs else ()
        for each in behind:
            taken_in.add(str(each.name))
            if (kernel := _kernel_of(each, str(each.name), kernels)) is not None:
                break
        if d.node in taken_in or (kernel is None and not d.macs):
            continue  # done where its input is made, without a kernel
        integer = kernel is not None and kernel.integer and d.computes_on_codes
        other = f"{runtime.title} runs it in float" if d.computes_on_codes else d.reason
        kind = "not found" if kernel is None else kernel.kind
        rows.append(AuditRow(d.node, d.op, kind, integer, d.macs, "" if integer else other))
    return Coverage(str(runtime), tuple(rows))


def _kernel_of(
    node: ir.Node | None, name: str, kernels: Mapping[str, ExecutedKernel]
) -> ExecutedKernel | None:
    """The kernel that stands for a node, known by its name or by what it makes."""
    return kernels.get(name) or (kernels.get(name_of(node.outputs[0])) if node else None)


def _affine_behind(node: ir.Node | None) -> Iterator[ir.Node]:
    """The product with stored numbers, the sum, the norm or the negation that alone reads a result,
    and so on: a runtime takes them into the kernel before them, and calls that after the last."""
    while node is not None:
        uses = list(node.outputs[0].uses())
        node = uses[0].node if len(uses) == 1 else None
        affine = node is not None and node.op_type in _AFFINE and any(map(is_constant, node.inputs))
        if node is None or not (affine or node.op_type == "Neg"):
            return
        yield node


def _operators(plan: QuantPlan) -> list[Decision]:
    """What an audit lists."""
    known = {row.key for row in OPS.values()}
    return [
        d
        for d in plan.nodes
        if d.computes_on_codes
        or d.execution is Execution.WEIGHTS
        or (d.execution is Execution.FLOAT and d.op in known)
    ]


def _name_in(node: ir.Node, planned: Mapping[str, Any]) -> str:
    """The operator of the plan that a node is, or is a part of; else its own name."""
    given = str(node.name)
    name = value_names.operator_of(given, node.op_type)
    return name if name in planned else given


def _row(
    node: ir.Node,
    name: str,
    parts: int,
    source: OnnxModel,
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
    # what is taken into another kernel: a convolution only where codes are planned
    taken = bool(plan) or node.op_type not in WEIGHT_INPUT
    integer = taken if found is None else _is_integer(found)
    form = plan.get("form")
    if form == "weights" or (form == "float" and node.name not in running.nodes):
        integer = False  # what was found is not itself, but what reads it
    macs = int(plan["macs"]) // max(parts, 1) if plan else shapes.macs(node)
    reason = "" if integer else plan.get("reason") or _why_float(node, source)
    stored = kernel in ON_WEIGHTS or form == "weights"
    if found is not None and kernel in ON_WEIGHTS:
        reason = _slow_level(found) or reason
    return AuditRow(name, node.op_type, kernel, integer, macs, reason, stored)


def _is_own(node: ir.Node) -> bool:
    """Whether an operator is neither ONNX's nor the runtime's."""
    return node.domain not in _DOMAINS


def _planned(source: OnnxModel) -> dict[str, Mapping[str, Any]]:
    """What qtool's plan says of each node, if the file is its own."""
    info = FileInfo.of(source.outline)
    return {} if info is None else {n.node: vars(n) for n in info.nodes}


def _why_float(node: ir.Node, source: OnnxModel) -> str:
    """For a file of unknown origin: what is missing around the node."""
    for value in node.inputs[:2]:
        maker = None if value is None else value.producer()
        if is_constant(value) and node.op_type in WEIGHT_INPUT:
            return f"its weight {name_of(value)} is stored as float"
        if not is_constant(value) and (maker is None or maker.op_type != "DequantizeLinear"):
            return f"its input {name_of(value)} is not quantized"
    readers = {n.op_type for n in source.readers(node.outputs[0])}
    if not readers & {"QuantizeLinear", "Relu", "Clip"}:
        return "its output is not quantized"
    return f"{RUNTIME} has no integer kernel for this form"


def _slow_level(node: ir.Node) -> str:
    """Why MatMulNBits is slower than it could be; most tools leave the level to its default."""
    level = attributes_of(node).get("accuracy_level", 0)
    if level == _ON_CODES:
        return ""
    return (
        f"accuracy_level {level} turns its weights into floats in every call, which may be slower "
        f"than the float model; set accuracy_level = {_ON_CODES}"
    )


class _Running:
    """The optimised graph, with look-ups by the names of the file."""

    def __init__(self, graph: ir.Graph) -> None:
        self.nodes = {without_suffix(n.name): n for n in graph if n.name}
        self.by_output = {without_suffix(name_of(o)): n for n in graph for o in n.outputs}

    def find(self, node: ir.Node, source: OnnxModel) -> ir.Node | None:
        """The node that computes `node`: by name, else by what it or its followers compute."""
        if node.name in self.nodes:
            return self.nodes[node.name]
        value, steps = node.outputs[0], 0
        while steps < 8:
            if (name := name_of(value)) in self.by_output:
                return _behind(self.by_output[name])
            readers = source.readers(value)
            if len(readers) != 1:
                return None
            value, steps = readers[0].outputs[0], steps + 1
        return None


def _behind(node: ir.Node) -> ir.Node:
    """The node whose result `node` only brings into another layout."""
    source = input_at(node, 0)
    while node.op_type in _MOVES and source is not None and (maker := source.producer()):
        node, source = maker, input_at(maker, 0)
    return node


def _is_integer(node: ir.Node) -> bool:
    if node.op_type in INTEGER:
        return True
    return node.op_type in ON_EITHER and _in_codes(input_at(node, 0))


def _in_codes(value: ir.Value | None) -> bool:
    maker = None if value is None else value.producer()
    if value is None or maker is None:
        return value is not None and value.dtype in (ir.DataType.UINT8, ir.DataType.INT8)
    if maker.op_type in ON_EITHER:
        return _in_codes(input_at(maker, 0))
    return maker.op_type == "QuantizeLinear" or maker.op_type.startswith("QLinear")


def _one_sample(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose dynamic dimensions are 1, so that sizes computed from them are inferred."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
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
            found = onnx.shape_inference.infer_shapes(_one_sample(model), data_prop=True)
        except Exception:  # noqa: BLE001  # a custom operator: what is not inferred is left out
            found = model
        graph = graph_of(found)
        self.values = ir.convenience.create_value_mapping(graph)
        first = self.sizes(graph.inputs[0]) if graph.inputs else None
        self.samples = first[0] if first else 1

    def is_data(self, value: ir.Value) -> bool:
        """Floats or codes, not sizes and indices."""
        found = self.values.get(name_of(value))
        return found is None or found.dtype is None or found.dtype in _DATA

    def sizes(self, value: ir.Value | None) -> tuple[int, ...] | None:
        found = self.values.get(name_of(value))
        if found is None or found.shape is None:
            return None
        return tuple(s if isinstance(s, int) and s > 0 else 1 for s in found.shape)

    def macs(self, node: ir.Node) -> int:
        """MACs of one sample; 0 where the shape cannot be inferred (behind an unknown operator)."""
        inputs, result = [self.sizes(v) for v in node.inputs], self.sizes(node.outputs[0])
        return onnx_macs(node.op_type, inputs, result, attributes_of(node)) // self.samples
