"""Mistakes in Python: arguments of the public functions."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from tests.mistakes.mistake import Case, cases, check_refused
from tests.mistakes.nets import (
    IMAGES,
    calibration,
    captured,
    flat_net,
    image_net,
    other_weights,
    quantize,
)

D = [IMAGES]
OPTION = "OptionError CallEdit"
AGAIN = "CalibrationError OtherFile"


def rule(**entries: Any) -> Any:
    return lambda: quantize(D, recipe=[{"select": "0", **entries}])


def recover(steps: Any) -> Any:
    return lambda: qtool.quantize(captured(), D, recover=steps)


def converted(of: Any, model: Any = None, **options: Any) -> Any:
    return lambda: qtool.convert(captured() if model is None else model(), of, **options)


def exported(path: str, **options: Any) -> Any:
    return lambda: quantize(D).export(path, **options)


def to_file(*options: Any, data: Any = D, **named: Any) -> Any:
    return lambda: qtool.quantize_to_file(image_net(), data, "out.onnx", *options, **named)


def evaluated(**options: Any) -> Any:
    return lambda: qtool.evaluate("out.onnx", image_net(), D, **options)


def merged() -> None:
    calibration().merge(qtool.calibrate(flat_net(), [torch.randn(40, 12)]))


REFUSED: list[Case] = [
    (lambda: pickle.dumps(quantize(D)), "ExportError", "a QuantizedModel cannot be pickled"),
    (lambda: pickle.dumps(captured()), "ExportError", "a Captured cannot be pickled"),
    (lambda: quantize(D, target="tflight"), "PlanError", "unknown target 'tflight'; did you"),
    (lambda: quantize(D, target=3), "PlanError", "unknown target '3'"),
    (lambda: quantize(D, observer="max"), "CalibrationError", "did you mean 'minmax'?"),
    (lambda: quantize(D, observer="percentile:q=3"), "CalibrationError", "has no option 'q'"),
    (lambda: quantize(D, mode="int8"), "PlanError", 'mode = "int8" is unknown'),
    (lambda: qtool.quantize(captured(), D, accuracy="high"), "PlanError", 'accuracy = "high" is'),
    (recover(["adaround"]), "PlanError", "unknown recovery step 'adaround'"),
    (recover("gptq"), "PlanError", "recover is 'gptq'"),
    (recover([None]), "PlanError", "recover is (None,)"),
    (lambda: quantize(D, recipe=8), "PlanError", "the rules of a recipe must be a list"),
    (lambda: quantize(D, recipe=["float"]), "PlanError", "rule 1 is 'float'"),
    (lambda: quantize(D, recipe={"0": "float"}), "PlanError", "the recipe has the key '0'"),
    (rule(select="layer9", **{"as": "float"}), "PlanError", "selects no node"),
    (rule(select="/(a+)+$/", **{"as": "float"}), "PlanError", "rule 1 of the recipe"),
    (rule(**{"as": "int7"}), "PlanError", 'rule 1: as = "int7" is unknown'),
    (rule(bits=4, **{"as": "float"}), "PlanError", "rule 1 has the key 'bits'"),
    (rule(select="*", **{"as": "float"}), "PlanError no --recipe", "nothing in this model can"),
    (lambda: quantize(D, recipe={"mode": "dynamic"}, mode="static"), "PlanError CallEdit", "sets"),
    (exported("model.pth"), "FileError OtherFile", "models are written as .onnx"),
    (exported("."), "FileError OtherFile", "cannot write .: it is a directory"),
    (exported("m.onnx", format="int8"), "ExportError", "does not support format 'int8'"),
    (converted(calibration(), flat_net), AGAIN, "the model does not run on the given inputs"),
    (converted(calibration(), other_weights), AGAIN, "made with another model, or with other w"),
    (converted(calibration(), target="tflite"), AGAIN, "made for target onnxruntime"),
    (converted({}), "CalibrationError CallEdit", "the calibration is a dict"),
    (converted("no.calib"), "CalibrationError", "no.calib: no such calibration file"),
    (converted(None), "CalibrationError", "give a calibration, a file of scales, or both"),
    (merged, "CalibrationError", "the two calibrations have a different model"),
    (lambda: calibration().save("."), "FileError OtherFile", "cannot write .: it is a directory"),
    (lambda: qtool.verify("model.onnx"), "FileError", "model.onnx: no such file"),
    (evaluated(threads=0), OPTION, "threads is 0; give a whole number of at least 1"),
    (evaluated(seconds=-1), OPTION, "seconds is -1; give a finite number of at least 0"),
    (to_file({"mode": "static"}), OPTION, "options is a dict; give qtool.QuantizeOptions(...)"),
    (to_file(file={"format": "qdq"}), OPTION, "file is a dict; give qtool.FileOptions(...)"),
    (to_file(data="nodata"), "DataError", "nodata: no such file or folder"),
    (lambda: qtool.FileOptions(min_sqnr="30"), OPTION, "FileOptions.min_sqnr is '30'"),
    (lambda: qtool.FileOptions(timing=-3), OPTION, "FileOptions.timing is -3"),
    (lambda: qtool.TuneGoals(max_drop=float("nan")), OPTION, "TuneGoals.max_drop is nan"),
    (lambda: qtool.TuneGoals(min_speedup=-1), OPTION, "TuneGoals.min_speedup is -1"),
    (lambda: qtool.bench([]), "DataError CallEdit", "give one or more to time"),
    (lambda: qtool.compare([], D), "DataError CallEdit", "give two or more to compare"),
    (lambda: qtool.load_model("a/vit"), "CaptureError CallEdit CallEdit", "no such model: 'a/vit'"),
]
X = nn.Identity()
PATHS = {
    "inspect": qtool.inspect,
    "verify": qtool.verify,
    "bench": lambda wrong: qtool.bench([wrong]),
    "evaluate": lambda wrong: qtool.evaluate(wrong, X, D),
    "explain": lambda wrong: qtool.explain(X, wrong, D),
    "compare": lambda wrong: qtool.compare([wrong], X, D),
    "convert": lambda wrong: qtool.convert(X, wrong),
    "load": qtool.Calibration.load,
    "export_float": lambda wrong: qtool.Captured.export_float(None, wrong),
    "report": lambda wrong: qtool.report(X, data=D, folder=wrong),
    "report of": lambda wrong: qtool.report(wrong, data=D, folder="report"),
    "export": lambda wrong: qtool.QuantizedModel.export(None, wrong),
    "by blocks": lambda wrong: qtool.quantize_by_blocks(wrong, [], "model.onnx"),
}


@cases(REFUSED)
def test_refused(mistake, kind, names):
    check_refused(mistake, kind, names)


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_is_none(name: str) -> None:
    for wrong in (3, None, b"model.onnx", 1.5, True):
        if name != "convert" or wrong is not None:  # scales may stand in for a calibration
            check_refused(lambda of=wrong: PATHS[name](of), "FileError CallEdit", "give a path as")


def test_a_calibration_that_was_cut_off() -> None:
    Path("cut.calib").write_bytes(calibration().to_bytes()[:-100])
    said = "not a calibration file, or a damaged one"
    check_refused(converted("cut.calib"), AGAIN, said)


def test_a_path_of_bytes() -> None:
    path = type("Bytes", (), {"__fspath__": lambda self: b"model.onnx"})()
    check_refused(lambda: qtool.inspect(path), "FileError CallEdit", "of the type Bytes")
    with pytest.raises(TypeError, match="missing"):
        qtool.inspect()


@pytest.mark.parametrize("place", [".", "file/model", "file/missing/model"])
def test_an_unwritable_output(place: str, folder: Path) -> None:
    (folder / "file").write_text("a file, no folder")
    for write in (calibration().save, quantize(D).export):
        with pytest.raises(qtool.FileError, match="cannot write"):
            write(folder / place)
        assert (folder / "file").read_text() == "a file, no folder"


def test_a_disk_that_fails_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("model.calib")
    path.write_text("the last good one")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    check_refused(lambda: calibration().save(path), "FileError", "No space left on device")
    assert path.read_text() == "the last good one"


def test_a_name_misspelled_has_what_python_suggests_from() -> None:
    with pytest.raises(AttributeError) as caught:
        qtool.quantise  # noqa: B018
    assert caught.value.obj is qtool
    assert caught.value.name == "quantise"
