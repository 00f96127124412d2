"""Contents of a file: an ONNX file of any tool, or a calibration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnx.reading import OnnxModel, array_of, input_at, name_of
from qtool.backends.onnx.self_test_format import SelfTest
from qtool.backends.onnx.storage import load_outline
from qtool.backends.tflite.engine import tensor_names
from qtool.backends.tflite.file import is_tflite
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.calibration.calibration import Calibration
from qtool.core.errors import VerificationError
from qtool.core.formats import table
from qtool.core.path_arguments import accepts_paths
from qtool.core.records import to_json
from qtool.verification import Coverage, audit
from qtool.verification.tflite import describe_file, tflite_coverage


@dataclass(frozen=True)
class TensorParameters:
    """One quantized tensor: its integer type, scales and zero points."""

    tensor: str
    dtype: str
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]

    def row(self) -> tuple[str, str, str, str]:
        return self.tensor, self.dtype, _summary(self.scales), _summary(self.zero_points)


@dataclass(frozen=True)
class ModelContents:
    """Contents of an ONNX file.

    Attributes:
        file: its path.
        coverage: the kernel that ONNX Runtime runs for every operator.
        parameters: of the quantized tensors.
        self_test: the self-test in the file, in a sentence.
    """

    file: str
    coverage: Coverage
    parameters: tuple[TensorParameters, ...]
    self_test: str

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = to_json(self)
        return fields

    def __str__(self) -> str:
        operators = table(
            ("name", "operator", "runs as", "MACs", "why float"),
            [(r.name, r.op, r.kernel, f"{r.macs:,}", r.reason) for r in self.coverage.rows],
            "operators",
            "lllrl",
        )
        params = table(
            ("tensor", "type", "scale", "zero point"),
            [p.row() for p in self.parameters],
            "parameters",
            "llrr",
        )
        return f"{operators}\n\n{params}\n\n{self.coverage}\n{self.self_test}"


@dataclass(frozen=True)
class CalibrationContents:
    """Contents of a calibration file.

    Attributes:
        ranges: lowest and highest value of each tensor, as conversion uses them.
    """

    file: str
    target: str
    samples: int
    observer: str
    fingerprint: str
    inputs: tuple[str, ...]
    ranges: dict[str, tuple[float, float]]

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = to_json(self)
        return fields

    def __str__(self) -> str:
        rows = [(name, f"{low:.6g}", f"{high:.6g}") for name, (low, high) in self.ranges.items()]
        return (
            f"{self.file}: {self.samples} samples, target {self.target}, "
            f"observer {self.observer}\ninputs: {'; '.join(self.inputs)}\n"
            f"model: {self.fingerprint}\n\n{table(('tensor', 'low', 'high'), rows)}"
        )


@accepts_paths("file")
def inspect(file: str | Path) -> ModelContents | CalibrationContents:
    """Return the contents of a file.

    Args:
        file: an ONNX file of any tool (its name ends in .onnx), a TFLite file, or a saved
            calibration.

    Raises:
        FileError: not a model file.
        CalibrationError: not a calibration.
        VerificationError: ONNX Runtime does not load the model.
    """
    path = Path(file)
    if is_tflite(path):
        model = TfliteFile(path)
        parameters = tuple(_tensor_parameters(model))
        notes = describe_file(model)
        return ModelContents(str(file), tflite_coverage(model), parameters, notes)
    if path.suffix == ".onnx":
        coverage = audit(path)  # first: refuses files that the runtime does not load
        return ModelContents(str(file), coverage, tuple(read_parameters(path)), _self_test(path))
    calibration = Calibration.load(path)
    return CalibrationContents(
        str(file),
        calibration.target,
        calibration.samples,
        str(calibration.observer),
        calibration.fingerprint,
        tuple(map(str, calibration.inputs)),
        {name: (low, high) for name, low, high in calibration.ranges()},
    )


def _tensor_parameters(file: TfliteFile) -> Iterator[TensorParameters]:
    for name, tensor in zip(tensor_names(file.model), file.model.tensors, strict=True):
        q = tensor.quantization
        if q is not None:
            scales, zeros = map(float, q.scale), map(int, q.zero_point)
            yield TensorParameters(name, tensor.type, tuple(scales), tuple(zeros))


def _self_test(path: Path) -> str:
    try:
        test = SelfTest.of(load_outline(path))
    except VerificationError as error:
        return str(error)
    return "no self-test in this file" if test is None else str(test)


def _summary(values: tuple[float, ...]) -> str:
    if len(values) == 1:
        return f"{values[0]:.6g}"
    low, high = min(values), max(values)
    return (
        f"{low:.6g} ({len(values)})" if low == high else f"{low:.4g} .. {high:.4g} ({len(values)})"
    )


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
