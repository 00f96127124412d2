"""Contents of a file: a model of any tool, or a calibration."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from qtool.backends.formats import is_model, open_file
from qtool.backends.model_file import TensorParameters
from qtool.core.errors import CalibrationError, FileError, missing
from qtool.core.number_texts import table
from qtool.core.path_arguments import model_file
from qtool.core.records import JsonRecord
from qtool.core.summary import Printed, Summary
from qtool.core.torch_package import has_torch, torch_error
from qtool.verification import Coverage


@dataclass(frozen=True)
class ModelContents(Printed, JsonRecord):
    """Contents of a model file.

    Attributes:
        file: its path.
        coverage: the kernel that the runtime has for every operator.
        parameters: parameters of the quantized tensors.
        self_test: the self-test in an ONNX file, in a sentence; origin, interface and memory of a
            TFLite file.
    """

    file: str
    coverage: Coverage
    parameters: tuple[TensorParameters, ...]
    self_test: str

    def summary(self, title: str | None = None) -> Summary:
        """Return what the file is in a few lines."""
        types = Counter(p.dtype for p in self.parameters)
        each = ", ".join(f"{count} {dtype}" for dtype, count in types.items())
        count = f"{len(self.parameters)} quantized" + (f": {each}" if each else "")
        rows = [self.coverage.row(), ("tensors", count)]
        for line in self.self_test.splitlines():
            label = "self-test" if "self-test" in line else "file"
            rows.append((label, line.removeprefix("self-test: ")))
        return Summary(title or self.file, f"in {self.coverage.runtime}", tuple(rows))

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.summary()}"

    def table(self) -> str:
        """Return tables of the operators and of the quantized tensors."""
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
        return f"{operators}\n\n{params}"


def model_contents(file: str | Path) -> ModelContents:
    """Return the contents of a model file of any tool.

    Raises:
        FileError: not a model file.
        VerificationError: the runtime does not load it.
    """
    model = open_file(file)
    coverage = model.coverage()  # first: refuses files that the runtime does not load
    return ModelContents(str(file), coverage, tuple(model.parameters()), model.notes())


@dataclass(frozen=True)
class CalibrationContents(Printed, JsonRecord):
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

    def summary(self, title: str | None = None) -> Summary:
        """Return what the calibration is in a few lines."""
        rows = (
            ("samples", f"{self.samples:,}"),
            ("ranges", f"{len(self.ranges)} tensors, observer {self.observer}"),
            ("target", self.target),
            ("inputs", "; ".join(self.inputs)),
            ("model", f"fingerprint {self.fingerprint}"),
        )
        return Summary(title or self.file, "calibration", rows)

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.summary()}"

    def table(self) -> str:
        """Return a table of the ranges."""
        rows = [(name, f"{low:.6g}", f"{high:.6g}") for name, (low, high) in self.ranges.items()]
        return table(("tensor", "low", "high"), rows)


def inspect(file: str | Path) -> ModelContents | CalibrationContents:
    """Return the contents of a file.

    Args:
        file: an ONNX file of any tool (its name ends in .onnx), a TFLite file, or a saved
            calibration.

    Raises:
        FileError: not a model file.
        CalibrationError: not a calibration.
        InstallError: a calibration, and torch is not installed.
        VerificationError: ONNX Runtime does not load the model.

    Example:
        >>> print(qtool.inspect("model.int8.onnx"))
    """
    path = model_file(file)
    if is_model(path):
        return model_contents(path)
    if not path.exists():
        raise missing(path, FileError)
    if not has_torch():
        raise torch_error(f"{path} is no model; reading a calibration")
    from qtool.calibration.calibration import Calibration  # has tensors

    try:
        calibration = Calibration.load(path)
    except CalibrationError as error:
        if path.suffix == ".calib" or path.is_dir():
            raise
        raise FileError(
            f"{path} is neither a model (.onnx, .tflite) nor a calibration of qtool"
        ) from error
    return CalibrationContents(
        str(file),
        calibration.target,
        calibration.samples,
        str(calibration.observer),
        calibration.fingerprint,
        tuple(map(str, calibration.inputs)),
        {name: (low, high) for name, low, high in calibration.ranges()},
    )
