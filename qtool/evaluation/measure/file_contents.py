"""Contents of a file: a model of any tool, or a calibration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtool.backends.tflite.file import is_tflite
from qtool.calibration.calibration import Calibration
from qtool.core.formats import table
from qtool.core.path_arguments import accepts_paths
from qtool.core.records import to_json
from qtool.evaluation.files import TensorParameters, open_file
from qtool.verification import Coverage


@dataclass(frozen=True)
class ModelContents:
    """Contents of a model file.

    Attributes:
        file: its path.
        coverage: the kernel that the runtime has for every operator.
        parameters: of the quantized tensors.
        self_test: the self-test in an ONNX file, in a sentence; origin, interface and memory of a
            TFLite file.
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
    if path.suffix == ".onnx" or is_tflite(path):
        model = open_file(path)
        coverage = model.coverage()  # first: refuses files that the runtime does not load
        return ModelContents(str(file), coverage, tuple(model.parameters()), model.notes())
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
