"""Mistakes in Python: arguments of the public functions."""

import pickle
from pathlib import Path
from typing import Any

import pytest

import qtool
from tests.mistakes.mistake import Case, cases, check_refused
from tests.mistakes.nets import (
    IMAGES,
    calibration,
    captured,
    image_net,
    quantize,
)

D = [IMAGES]
OPTION = "OptionError CallEdit"
AGAIN = "CalibrationError OtherFile"


def recover(steps: Any) -> Any:
    return lambda: qtool.quantize(captured(), D, recover=steps)


def converted(of: Any, model: Any = None, **options: Any) -> Any:
    return lambda: qtool.convert(captured() if model is None else model(), of, **options)


def to_file(*options: Any, data: Any = D, **named: Any) -> Any:
    return lambda: qtool.quantize_to_file(image_net(), data, "out.onnx", *options, **named)


def evaluated(**options: Any) -> Any:
    return lambda: qtool.evaluate("out.onnx", image_net(), D, **options)


REFUSED: list[Case] = [
    (lambda: pickle.dumps(quantize(D)), "ExportError", "a QuantizedModel cannot be pickled"),
    (lambda: pickle.dumps(captured()), "ExportError", "a Captured cannot be pickled"),
    (lambda: quantize(D, target=3), "PlanError", "unknown target '3'"),
    (recover("gptq"), "PlanError", "recover is 'gptq'"),
    (recover([None]), "PlanError", "recover is (None,)"),
    (lambda: quantize(D, recipe={"mode": "dynamic"}, mode="static"), "PlanError CallEdit", "sets"),
    (converted({}), "CalibrationError CallEdit", "the calibration is a dict"),
    (evaluated(threads=0), OPTION, "threads is 0; give a whole number of at least 1"),
    (evaluated(seconds=-1), OPTION, "seconds is -1; give a finite number of at least 0"),
    (to_file({"mode": "static"}), OPTION, "options is a dict; give qtool.QuantizeOptions(...)"),
    (to_file(file={"format": "qdq"}), OPTION, "file is a dict; give qtool.FileOptions(...)"),
    (to_file(data="nodata"), "DataError", "nodata: no such file or folder"),
    (lambda: qtool.bench([]), "DataError CallEdit", "give one or more to time"),
]


@cases(REFUSED)
def test_refused(mistake, kind, names):
    check_refused(mistake, kind, names)


def test_a_calibration_that_was_cut_off() -> None:
    Path("cut.calib").write_bytes(calibration().to_bytes()[:-100])
    said = "not a calibration file, or a damaged one"
    check_refused(converted("cut.calib"), "CalibrationError OtherFile OtherFile", said)


def test_one_path_for_several() -> None:
    check_refused(lambda: qtool.bench("a.onnx"), "FileError CallEdit", "'a.onnx' is one path")


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
