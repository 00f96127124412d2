"""An ONNX file, read and run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from qtool.backends.model_file import Conversion, NodeKernel, TensorParameters
from qtool.backends.onnx.file_info import FileInfo, maker_version
from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.origin import evidence_of_model
from qtool.backends.onnx.reading import (
    OnnxModel,
    array_of,
    graph_of,
    input_at,
    name_of,
)
from qtool.backends.onnx.self_test_format import SelfTest
from qtool.backends.onnx.storage import load_outline, model_files
from qtool.backends.onnxruntime.audit import audit
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.core import value_names
from qtool.core.errors import FileError, VerificationError
from qtool.core.on_use import OnUse
from qtool.core.option_names import TARGET_MACHINES
from qtool.core.output_evidence import Evidence
from qtool.core.types import Array, Progress
from qtool.planning.plan import Execution
from qtool.verification import Coverage, Exactness, FileCheck, SelfCheck

_QUANTIZED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "QLinear",
    "Integer",
    "DynamicQuantize",
    "MatMulNBits",
    "QMoE",
    "GatherBlockQuantized",
)
"""Parts of the types of operators on quantized tensors."""
_STORED = Execution.WEIGHTS.value
_HERE = "qtool.backends.onnxruntime"
_profile_file: Callable[..., dict[str, NodeKernel]] = OnUse(f"{_HERE}.node_times:profile_file")
_check_self_test: Callable[..., SelfCheck] = OnUse(f"{_HERE}.self_test.run:check_self_test")
_VERIFY: Callable[..., FileCheck] = OnUse(f"{_HERE}.verification.file_check:verify")
_COMPARE: Callable[..., Exactness] = OnUse(f"{_HERE}.verification.bit_exactness:compare_codes")


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
        if any(mark in n.op_type for n in nodes for mark in _QUANTIZED):
            return True
        info = FileInfo.of(self.outline)  # stored weights are a Cast and a Mul
        return info is not None and any(n.form == _STORED for n in info.nodes)

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
        machines = TARGET_MACHINES.get(self.target or "", ())
        return machines is not None and (not machines or machine_profile() in machines)

    @property
    def takes_one_sample(self) -> bool:
        return False

    def input_ranges(self) -> dict[str, tuple[float, float]]:
        return input_ranges(self.path)

    def output_evidence(self) -> dict[str, Evidence]:
        return evidence_of_model(OnnxModel.of(self.path))

    def known_sizes(self) -> dict[str, int]:
        try:
            test = SelfTest.of(self.outline)
        except VerificationError:  # damaged: the self-test says so
            return {}
        shapes = () if test is None else (spec.shape for spec in test.inputs)
        return {
            dim.dim_param: size
            for each, shape in zip(self.outline.graph.input, shapes, strict=False)
            for dim, size in zip(each.type.tensor_type.shape.dim, shape, strict=False)
            if dim.dim_param
        }

    def conversion(self) -> Conversion | None:
        info = FileInfo.of(self.outline)
        return None if info is None else Conversion(info, _FileConstants(OnnxModel.of(self.path)))

    def parameters(self) -> list[TensorParameters]:
        return read_parameters(self.path)

    def constants(self) -> Iterator[Array]:
        graph = OnnxModel.of(self.path).graph
        in_blocks = {v for n in graph if n.attributes.get("block_size") for v in n.inputs}
        values = (*graph.initializers.values(), *(v for n in graph for v in n.outputs))
        arrays = (array_of(value) for value in values if value not in in_blocks)
        return (a for a in arrays if a is not None and a.dtype != object)

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

    def node_names(self) -> list[str]:
        graph = graph_of(self.outline)
        return [str(n.name) for n in (*graph.inputs, *graph)]

    def node_times(self, inputs: Sequence[Array], threads: int, runs: int) -> dict[str, NodeKernel]:
        return _profile_file(self.path, inputs, threads, runs)

    def deployment(self) -> None:
        return None

    def check_self_test(self) -> SelfCheck:
        return _check_self_test(self.path)

    def verify(self, batches: Iterable[Sequence[Array]], progress: Progress) -> FileCheck:
        return _VERIFY(self, batches, progress)

    def compare_codes(self, batches: Iterable[Sequence[Array]]) -> Exactness:
        return _COMPARE(self.path, batches)


class _FileConstants:
    """Arrays of each point in a file, by the names that the export uses."""

    def __init__(self, file: OnnxModel) -> None:
        self.rows: dict[str, tuple[str, slice]] = {}
        self.stored = file.graph.initializers
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
        if scale.ndim == 3:  # of experts, in blocks
            scale, zero = (a.reshape(-1, a.shape[-1]) for a in (scale, zero))
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
    file, ranges = OnnxModel.of(path), dict[str, tuple[float, float]]()
    for value in file.inputs:
        for node in file.readers(value):
            if node.op_type == "QuantizeLinear" and (known := _range_of(node)) is not None:
                ranges[name_of(value)] = known
        if rows := _table_rows(file, value):
            ranges[name_of(value)] = (0, min(rows) - 1)
    return ranges


def _range_of(node: Node) -> tuple[float, float] | None:
    """Return what a QuantizeLinear represents, and a twentieth beyond it on each side; None where
    its parameters are computed, one for each channel, or of a type that is no integer."""
    scale, zero = (array_of(input_at(node, i)) for i in (1, 2))
    if scale is None or scale.size != 1:
        return None
    zero = np.zeros((), np.uint8) if zero is None else zero
    if zero.dtype.kind not in "iu":
        return None
    limits, step, offset = np.iinfo(zero.dtype), float(scale.reshape(())), int(zero.reshape(()))
    margin = 0.05 * step * (limits.max - limits.min + 1)
    return step * (limits.min - offset) - margin, step * (limits.max - offset) + margin


_SAME_VALUES = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})


_LOOKUPS = frozenset({"Gather", "GatherBlockQuantized"})


def _table_rows(file: OnnxModel, value: Value) -> list[int]:
    """Return the number of rows of each constant table from which a tensor selects rows."""
    rows: list[int] = []
    for node in file.readers(value):
        if node.op_type in _SAME_VALUES and input_at(node, 0) is value:
            rows += _table_rows(file, node.outputs[0])
        elif node.op_type in _LOOKUPS and input_at(node, 1) is value:
            table = input_at(node, 0)
            maker = None if table is None else table.producer
            if maker is not None and maker.op_type == "DequantizeLinear":
                table = input_at(maker, 0)
            array, attributes = array_of(table), node.attributes
            if array is not None and array.ndim:
                rows.append(array.shape[attributes.get("axis", attributes.get("gather_axis", 0))])
    return rows


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
