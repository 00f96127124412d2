"""An ONNX file, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass

from qtool.backends.model_file import Conversion, FileFormat, NodeKernel, TensorParameters
from qtool.backends.onnx.export import write_float
from qtool.backends.onnx.file_info import FileInfo, maker_version
from qtool.backends.onnx.reading import (
    OnnxModel,
    array_of,
    attributes_of,
    graph_of,
    input_at,
    name_of,
)
from qtool.backends.onnx.self_test_format import SelfTest
from qtool.backends.onnx.storage import load_outline, model_files, save
from qtool.backends.onnxruntime.audit import audit
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph
from qtool.backends.onnxruntime.node_times import profile_file
from qtool.backends.onnxruntime.planned_export import OnnxExport
from qtool.backends.onnxruntime.self_test.run import check_self_test
from qtool.backends.onnxruntime.session import OnnxSession
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.backends.onnxruntime_web.session import NODE
from qtool.backends.runtimes import runs_here
from qtool.core import value_names
from qtool.core.argument_names import argument
from qtool.core.errors import FileError, KernelError, PlanError, VerificationError
from qtool.core.option_names import MODEL_FORMATS
from qtool.core.quant_params import QuantParams
from qtool.core.types import Array, Progress
from qtool.planning.targets import TARGETS, Target
from qtool.verification import Coverage, Exactness, FileCheck

_QUANTIZED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "QLinear",
    "Integer",
    "DynamicQuantize",
    "MatMulNBits",
    "GatherBlockQuantized",
)
"""Parts of the types of operators on quantized tensors."""


class OnnxFile:
    """See `ModelFile`.

    Raises:
        FileError: not an ONNX model.
    """

    suffix = ".onnx"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outline = load_outline(path)
        if not self.outline.graph.node and not self.outline.graph.output:
            raise FileError(f"{path}: not an ONNX model, or an empty one")

    @property
    def parts(self) -> list[Path]:
        return list(model_files(self.path))

    @cached_property
    def is_quantized(self) -> bool:
        nodes = chain(self.outline.graph.node, *(f.node for f in self.outline.functions))
        return any(mark in n.op_type for n in nodes for mark in _QUANTIZED)

    @property
    def maker(self) -> str:
        version, model = maker_version(self.outline), self.outline
        other = f"{model.producer_name} {model.producer_version}".strip() or "unknown"
        return f"qtool {version}" if version else other

    @property
    def target(self) -> str | None:
        info = FileInfo.of(self.outline)
        return None if info is None else info.target

    @property
    def runs_here(self) -> bool:
        return self.target not in TARGETS or runs_here(TARGETS[self.target])

    @property
    def takes_one_sample(self) -> bool:
        return False

    def input_ranges(self) -> dict[str, tuple[float, float]]:
        return input_ranges(self.path)

    def verify(self, batches: Iterable[Sequence[Array]], progress: Progress) -> FileCheck:
        self_test = check_self_test(self.path)
        try:
            comparison = compare_codes(self.path, progress(batches))
        except (KernelError, VerificationError) as error:
            if not self_test.present:
                raise
            return FileCheck(0, 0, 0, 0.0, None, 0, self_test=self_test, not_compared=str(error))
        other = "" if self.runs_here else str(self.target)
        return FileCheck(**vars(comparison), self_test=self_test, other_target=other)

    def conversion(self) -> Conversion | None:
        info = FileInfo.of(self.outline)
        return None if info is None else Conversion(info, _FileConstants(OnnxModel.of(self.path)))

    def parameters(self) -> list[TensorParameters]:
        return read_parameters(self.path)

    def notes(self) -> str:
        return self.self_test()

    def self_test(self) -> str:
        try:
            test = SelfTest.of(self.outline)
        except VerificationError as error:
            return str(error)
        return "no self-test in this file" if test is None else str(test)

    def coverage(self) -> Coverage:
        return audit(self.path)

    def compare_codes(self, batches: Iterable[Sequence[Array]]) -> Exactness:
        return compare_codes(self.path, batches)

    def node_names(self) -> list[str]:
        graph = graph_of(self.outline)
        return [str(n.name) for n in (*graph.inputs, *graph)]

    def node_times(self, inputs: Sequence[Array], threads: int, runs: int) -> dict[str, NodeKernel]:
        return profile_file(self.path, inputs, threads, runs)

    def write_float(self, path: Path) -> Path:
        save(remove_quantization(self.path), path)
        return path

    def deployment(self) -> None:
        return None


class _FileConstants:
    """Arrays of each point in a file, by the names that the export uses."""

    def __init__(self, file: OnnxModel) -> None:
        self.rows: dict[str, tuple[str, slice]] = {}
        self.stored = file.model.graph.initializers
        self.readers = {n.name: n for n in file.nodes if n.op_type == "DequantizeLinear"}

    def parameters(self, point: str, root: str) -> tuple[Array, Array]:
        """Return scale (float32) and zero point (int64) in their stored shapes.

        Raises:
            VerificationError: the file has none.
        """
        node = self.readers.get(value_names.dequantize(point)) or self.readers.get(
            value_names.dequantize(root)
        )
        if node is None:
            joint, rows = self.rows.get(point, (point, slice(None)))
            own = (value_names.scale(joint), value_names.zero_point(joint))
            arrays = (array_of(self.stored.get(name)) for name in own)
            scale, zero = (a[rows] if a is not None and a.ndim else a for a in arrays)
        else:
            scale, zero = (array_of(input_at(node, i)) for i in (1, 2))
        if scale is None:
            raise VerificationError(f"the file holds no parameters of '{point}'")
        zero = np.zeros(scale.shape, np.int64) if zero is None else zero
        scale = np.where(scale == 0, 1, scale)  # a tensor of zeros
        return scale.astype(np.float32), zero.astype(np.int64)

    def codes(self, point: str) -> Array | None:
        node = self.readers.get(value_names.dequantize(point))
        joint, rows = self.rows.get(point, (point, slice(None)))
        value = self.stored.get(value_names.codes(joint)) if node is None else input_at(node, 0)
        array = array_of(value)
        if array is None:
            return None
        if joint != point:  # [inputs, outputs], or [outputs, blocks, bytes] of MatMulNBits
            array = array[:, rows] if array.ndim == 2 else array[rows]
        return np.ascontiguousarray(array)

    def split(self, outputs: Mapping[str, int]) -> _FileConstants:
        for joint in filter(None, map(value_names.point_of_codes, self.stored)):
            start = 0
            for point in value_names.points_of_joint(joint, outputs):
                self.rows[point] = joint, slice(start, start + outputs[point])
                start += outputs[point]
        return self


def input_ranges(path: str | Path) -> dict[str, tuple[float, float]]:
    """Return the least and the largest value of inputs that are quantized or select rows."""
    file = OnnxModel.of(path)
    graph, ranges = QdqGraph(file), {}
    for value in file.inputs:
        for node in file.readers(value):
            if node.op_type == "QuantizeLinear":
                params = graph.params(node)
                scale, zero = float(params.scale), int(params.zero_point)
                margin = 0.05 * scale * params.qtype.levels
                low, high = (scale * (q - zero) for q in (params.qtype.qmin, params.qtype.qmax))
                ranges[name_of(value)] = (low - margin, high + margin)
        if rows := _table_rows(file, value):
            ranges[name_of(value)] = (0, min(rows) - 1)
    return ranges


_SAME_VALUES = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})


_LOOKUPS = frozenset({"Gather", "GatherBlockQuantized"})


def _table_rows(file: OnnxModel, value: ir.Value) -> list[int]:
    """Return the number of rows of each constant table from which a tensor selects rows."""
    rows: list[int] = []
    for node in file.readers(value):
        if node.op_type in _SAME_VALUES and input_at(node, 0) is value:
            rows += _table_rows(file, node.outputs[0])
        elif node.op_type in _LOOKUPS and input_at(node, 1) is value:
            table = input_at(node, 0)
            maker = None if table is None else table.producer()
            if maker is not None and maker.op_type == "DequantizeLinear":
                table = input_at(maker, 0)
            array, attributes = array_of(table), attributes_of(node)
            if array is not None and array.ndim:
                rows.append(array.shape[attributes.get("axis", attributes.get("gather_axis", 0))])
    return rows


def remove_quantization(path: str | Path) -> onnx.ModelProto:
    """Return a QDQ model without QuantizeLinear and DequantizeLinear, on its rounded weights.

    Replaces the float model if only the quantized file is available.

    Raises:
        VerificationError: the file is not a QDQ model.
        KernelError: scales of a weight do not fit it.
    """
    file = OnnxModel.of(path)
    graph, ends = QdqGraph(file), ("QuantizeLinear", "DequantizeLinear")
    rounded = [n for n in file.nodes if n.op_type in ends]
    if not any(n.op_type == ends[0] for n in rounded):
        raise VerificationError(
            f"{path} has no QuantizeLinear nodes; pass its float model with {argument('--model')}"
        )
    for node in rounded:
        if len(node.inputs) < 2 or not node.outputs:
            raise VerificationError(f"the graph is invalid: {node.name} lacks inputs or outputs")
        output, source = node.outputs[0], node.inputs[0]
        if node.op_type == ends[1]:
            _make_float(file, source, graph.params(node))
        codes = graph.codes(output)
        if codes is not None and codes.constant is not None:
            real = codes.dequantize().numpy()
            source = ir.Value(name=f"{output.name}/float", const_value=ir.Tensor(real))
            file.model.graph.register_initializer(source)
        if source is None or source is output:
            raise VerificationError(f"the graph is invalid: '{output.name}' depends on itself")
        _replace_value(output, source)
    RemoveUnusedNodesPass()(file.model)
    return ir.to_proto(file.model)


def _make_float(file: OnnxModel, codes: ir.Value | None, params: QuantParams) -> None:
    """Give operators on codes, which move them, constants in float.

    Args:
        file: the model.
        codes: what a DequantizeLinear reads.
        params: its parameters.

    Raises:
        VerificationError: the constants have parameters for each channel.
    """
    maker = None if codes is None else codes.producer()
    if codes is None or maker is None or maker.op_type in ("QuantizeLinear", "Constant"):
        return
    kind = np.dtype(params.qtype.numpy_dtype)
    if maker.op_type == "Pad" and input_at(maker, 2) is None and _pads_with_codes(maker):
        zero = ir.Value(name=f"{maker.name}/code", const_value=ir.Tensor(np.zeros((), kind)))
        file.model.graph.register_initializer(zero)
        maker.resize_inputs(max(len(maker.inputs), 3))
        maker.replace_input_with(2, zero)
    for index, value in enumerate(maker.inputs):
        array = array_of(value)
        if value is None or array is None:
            _make_float(file, value, params)
        elif array.dtype == kind:
            if params.axis is not None:
                raise VerificationError(
                    f"{maker.name} moves codes with a scale for each channel; pass the float model "
                    f"with {argument('--model')}"
                )
            real = params.dequantize(torch.from_numpy(np.array(array))).numpy()
            name = f"{maker.name}/{index}/float"
            constant = ir.Value(name=name, const_value=ir.Tensor(real))
            file.model.graph.register_initializer(constant)
            maker.replace_input_with(index, constant)
    for output in maker.outputs:
        if output.dtype is not None:
            output.dtype = ir.DataType.FLOAT


def _pads_with_codes(node: ir.Node) -> bool:
    return bool(attributes_of(node).get("mode", "constant") == "constant")


def _replace_value(value: ir.Value, source: ir.Value) -> None:
    """Let all consumers of a value read `source`; a graph output keeps its name."""
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    if value.is_graph_output():
        node = ir.Node("", "Identity", [source], name=f"{value.name}/Identity")
        output = node.outputs[0]
        output.name, output.type, output.shape = value.name, value.type, value.shape
        value.name = f"{value.name}/rounded"
        graph.append(node)
        for i, each in enumerate(graph.outputs):
            if each is value:
                graph.outputs[i] = output
    value.replace_all_uses_with(source)


def read_parameters(path: str | Path) -> list[TensorParameters]:
    """Return the parameters of every tensor that a DequantizeLinear of the file reads, in order.

    Scales of type string, which ONNX allows, are skipped.

    Raises:
        FileError: not an ONNX file.
    """
    parameters: dict[str, TensorParameters] = {}
    for node in OnnxModel.of(path).nodes:
        codes, scale, zero = (array_of(input_at(node, i)) for i in range(3))
        if node.op_type != "DequantizeLinear" or scale is None or scale.dtype == object:
            continue
        zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
        name, dtype = name_of(node.inputs[0]), (zero if codes is None else codes).dtype
        scales = tuple(map(float, np.ravel(scale)))
        parameters[name] = TensorParameters(
            name, str(dtype), scales, tuple(map(int, np.ravel(zero)))
        )
    return list(parameters.values())


def check_measurable(target: Target) -> None:
    """Check that ONNX Runtime has the kernels of a target on this machine.

    Raises:
        PlanError: it has not.
    """
    if runs_here(target):
        return
    others = [s for s, name in MODEL_FORMATS.items() if name in target.file.formats]
    other = "".join(f", or write a {s} file" for s in others if s != OnnxFile.suffix)
    raise PlanError(
        f"a search measures time, and files for {target.name} do not run in ONNX Runtime here; "
        f"choose its target{other}"
    )


ONNX = FileFormat(
    ("qdq", "qoperator"),
    OnnxFile.suffix,
    lambda _: True,
    OnnxFile,
    OnnxSession,
    write_float,
    OnnxExport,
    check_measurable,
    (NODE,),
)
