"""Contents of a file: a model of any tool, or a calibration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qtool.backends.formats import is_model
from qtool.core.errors import CalibrationError, FileError, missing
from qtool.core.number_texts import table
from qtool.core.path_arguments import model_file
from qtool.core.records import JsonRecord
from qtool.core.summary import Printed, Summary
from qtool.core.torch_package import has_torch, torch_error
from qtool.evaluation.measure.model_contents import ModelContents, model_contents


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
