"""Bad input: a named error that says what, where and what to do; and nothing half-written."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.frontends.captured_model import capture_model
from tests.backends.onnx.export.networks import network, samples

x = samples("residual", 8)[0]


@pytest.fixture(scope="module")
def model() -> qtool.Captured:
    return capture_model(network("residual"), x)


@pytest.fixture
def refuses(tmp_path: Path) -> Callable[..., str]:
    """Calls a function that has to raise `kind`; nothing is written. Returns the message."""

    def check(kind: type[qtool.QtoolError], function: Callable, *args: object) -> str:
        before = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
        with pytest.raises(kind) as caught:
            function(*args)
        assert type(caught.value) is kind
        assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
        message = str(caught.value)
        assert "Traceback" not in message
        return message

    return check


@pytest.mark.parametrize("data", [[], iter(())], ids=["list", "iterator"])
def test_empty_data(data: object, model: qtool.Captured, refuses: Callable[..., str]) -> None:
    message = refuses(qtool.DataError, qtool.quantize, model, data)
    assert "empty" in message
    assert "give at least one batch" in message


def test_a_batch_without_samples(model: qtool.Captured, refuses: Callable[..., str]) -> None:
    message = refuses(qtool.DataError, qtool.quantize, model, [x[:0]])
    assert "batch 0, input 0 has no samples; remove empty batches" in message


@pytest.mark.parametrize("data", ["images", 5], ids=lambda d: type(d).__name__)
def test_data_that_is_no_iterable_of_batches(
    data: object, model: qtool.Captured, refuses: Callable[..., str]
) -> None:
    assert "data" in refuses(qtool.DataError, qtool.calibrate, model, data)


@pytest.mark.parametrize(("value", "what"), [("nan", "NaN"), ("inf", "Inf"), ("-inf", "Inf")])
@pytest.mark.parametrize("position", [0, 2])
def test_nan_and_inf_in_a_batch(
    value: str, what: str, position: int, model: qtool.Captured, refuses: Callable[..., str]
) -> None:
    bad = [x.clone() for _ in range(3)]
    bad[position][3, 1, 2, 2] = float(value)
    message = refuses(qtool.DataError, qtool.calibrate, model, bad)
    assert f"batch {position}, input 0 holds {what}" in message
    assert "remove or repair that sample" in message


def test_nan_in_a_named_input(refuses: Callable[..., str]) -> None:
    a, b = samples("two_inputs", 4)
    data = [{"a": a, "b": b}, {"a": a, "b": b * torch.nan}]
    message = refuses(qtool.DataError, qtool.calibrate, network("two_inputs"), data)
    assert "batch 1, input 'b' holds NaN" in message


def test_values_that_overflow_inside_the_model(
    model: qtool.Captured, refuses: Callable[..., str]
) -> None:
    huge = x * (3e38 / x.abs().max())
    message = refuses(qtool.DataError, qtool.calibrate, model, [x, huge])
    assert message.startswith("batch 1, tensor '")
    assert "NaN or Inf" in message


@pytest.mark.parametrize("shape", [(8, 3, 8, 8), (8, 4, 8, 9), (4, 8, 8), (8, 4, 8, 8, 1)])
def test_a_batch_of_another_shape(
    shape: tuple[int, ...], model: qtool.Captured, refuses: Callable[..., str]
) -> None:
    message = refuses(qtool.DataError, qtool.calibrate, model, [x, torch.zeros(shape)])
    assert f"batch 1, input 'x' has shape {list(shape)}" in message
    assert "x: float32[batch, 4, 8, 8]" in message


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_a_batch_of_another_dtype(
    dtype: torch.dtype, model: qtool.Captured, refuses: Callable[..., str]
) -> None:
    message = refuses(qtool.DataError, qtool.calibrate, model, [x, x.to(dtype)])
    name = str(dtype).removeprefix("torch.")
    takes = "the model takes float32; convert it first (x.to(torch.float32))"
    assert f"batch 1, input 'x' is {name}, {takes}" in message


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats_are_converted(dtype: torch.dtype, model: qtool.Captured) -> None:
    one = qtool.calibrate(model, [x, x.to(dtype).float()])
    other = qtool.calibrate(model, [x, x.to(dtype)])
    assert one.statistics.keys() == other.statistics.keys()
    assert one.kept_samples.state().keys() == other.kept_samples.state().keys()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"images": x, "more": x}, "images"),
        ({}, "nothing"),
        ((), "tuple"),
        ("text", "a batch is a str"),
        (None, "a batch is a NoneType"),
        ((["a"],), "not a tensor"),
    ],
    ids=str,
)
def test_a_batch_of_another_form(
    batch: object, message: str, model: qtool.Captured, refuses: Callable[..., str]
) -> None:
    assert message in refuses(qtool.DataError, qtool.calibrate, model, [x, batch])


def test_a_first_batch_that_does_not_fit_the_model(refuses: Callable[..., str]) -> None:
    message = refuses(qtool.CaptureError, qtool.quantize, network("residual"), [x[:, :3]])
    assert "does not run on the given inputs" in message


def test_a_model_in_training_mode(refuses: Callable[..., str]) -> None:
    net = copy.deepcopy(network("residual")).train()
    assert "call model.eval() first" in refuses(qtool.CaptureError, qtool.quantize, net, [x])


def test_a_model_with_nothing_to_quantize(refuses: Callable[..., str]) -> None:
    net = nn.Sequential(nn.Softmax(1), nn.LayerNorm(8)).eval()
    message = refuses(qtool.PlanError, qtool.quantize, net, [x])
    assert "nothing in this model can run in integers on onnxruntime" in message
    assert message.endswith("keep it in float")
    conv = nn.Sequential(nn.Conv2d(3, 4, 3)).eval()
    images = torch.rand(2, 3, 8, 8)
    message = refuses(qtool.PlanError, partial(qtool.quantize, mode="dynamic"), conv, [images])
    assert message.endswith("use mode='static'")


def test_a_calibration_of_another_model(model: qtool.Captured, refuses: Callable[..., str]) -> None:
    other = qtool.calibrate(network("concat"), [x])
    message = refuses(qtool.CalibrationError, qtool.convert, model, other)
    assert "another model" in message
    assert "calibrate this model first" in message


def test_a_truncated_calibration(
    model: qtool.Captured, tmp_path: Path, refuses: Callable[..., str]
) -> None:
    path = tmp_path / "model.calib"
    qtool.calibrate(model, [x]).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    message = refuses(qtool.CalibrationError, qtool.convert, model, path)
    assert f"{path}: not a calibration file, or a damaged one" in message


@pytest.mark.parametrize("place", [".", "file/model", "file/missing/model"])
def test_an_unwritable_output(
    place: str, model: qtool.Captured, tmp_path: Path, refuses: Callable[..., str]
) -> None:
    (tmp_path / "file").write_text("a file, no folder")
    calibration = qtool.calibrate(model, [x])
    for write in (calibration.save, qtool.convert(model, calibration).export):
        message = refuses(qtool.FileError, write, tmp_path / place)
        assert "cannot write" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder(
    model: qtool.Captured, tmp_path: Path, refuses: Callable[..., str]
) -> None:
    calibration = qtool.calibrate(model, [x])
    tmp_path.chmod(0o500)
    try:
        message = refuses(qtool.FileError, calibration.save, tmp_path / "model.calib")
    finally:
        tmp_path.chmod(0o700)
    assert "is not writable" in message


def test_a_disk_that_fails_leaves_what_was_there(
    model: qtool.Captured,
    tmp_path: Path,
    refuses: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "model.calib"
    path.write_text("the last good one")
    calibration = qtool.calibrate(model, [x])

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    message = refuses(qtool.FileError, calibration.save, path)
    assert message == f"cannot write {path}: No space left on device"


WRONG = pytest.mark.parametrize("wrong", [3, None, b"model.onnx", 1.5, True])
READ: dict[str, Callable[[object], object]] = {
    "inspect": qtool.inspect,
    "verify": qtool.verify,
    "bench": lambda wrong: qtool.bench([wrong]),
    "evaluate": lambda wrong: qtool.evaluate(wrong, nn.Identity(), [x]),
    "explain": lambda wrong: qtool.explain(nn.Identity(), wrong, [x]),
    "compare": lambda wrong: qtool.compare([wrong], nn.Identity(), [x]),
    "convert": lambda wrong: qtool.convert(nn.Identity(), wrong),
    "load": qtool.Calibration.load,
    "export_float": lambda wrong: qtool.Captured.export_float(None, wrong),
    "report": lambda wrong: qtool.report(nn.Identity(), data=[x], folder=wrong),
    "report of": lambda wrong: qtool.report(wrong, data=[x], folder="report"),
    "export": lambda wrong: qtool.QuantizedModel.export(None, wrong),
    "by blocks": lambda wrong: qtool.quantize_by_blocks(wrong, [], "model.onnx"),
}


@WRONG
@pytest.mark.parametrize("name", READ)
def test_a_path_that_is_none(name: str, wrong: object, refuses: Callable[..., str]) -> None:
    if name == "convert" and wrong is None:  # scales may stand in for a calibration
        assert "give a calibration" in refuses(qtool.CalibrationError, READ[name], wrong)
        return
    message = refuses(qtool.FileError, READ[name], wrong)
    assert "give a path as a str or a pathlib.Path" in message
    assert len(message.splitlines()) == 1


def test_a_path_of_any_kind(tmp_path: Path, refuses: Callable[..., str]) -> None:
    class Bytes:
        def __fspath__(self) -> bytes:
            return b"model.onnx"

    assert "of the type Bytes" in refuses(qtool.FileError, qtool.inspect, Bytes())
    assert "no such file" in refuses(qtool.FileError, qtool.inspect, tmp_path / "none.onnx")
    with pytest.raises(TypeError, match="missing"):
        qtool.inspect()
