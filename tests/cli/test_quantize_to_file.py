"""The call of the library and the command write the same file and measure the same figures."""

import json
import re
from pathlib import Path

import numpy as np
import onnxruntime as ort
from click.testing import CliRunner
from qtool.cli import main

import qtool
from qtool.core import number_texts
from tests.mistakes.nets import IMAGES, image_net

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
DIGITS = "examples.digits.network:digits_net"
DATA = "calib_data/digits"
UNTIMED = qtool.FileOptions(timing=0)


def test_has_the_figures_of_the_command(tmp_path: Path) -> None:
    weights, data = str(EXAMPLE / "weights.safetensors"), str(EXAMPLE / "eval.npz")
    line = ["quantize", DIGITS, "--weights", weights, "--data", DATA, "--accuracy", "fast"]
    line += ["--eval-data", data, "--labels", "labels", "--seconds", "0", "--json"]
    shown = CliRunner().invoke(main, [*line, "-o", str(tmp_path / "command.onnx")])
    assert shown.exit_code == 0, shown.output
    command = json.loads(shown.stdout)
    with np.load(data) as arrays:
        labels = arrays["labels"]
    file = qtool.quantize_to_file(
        DIGITS,
        DATA,
        tmp_path / "call.onnx",
        qtool.QuantizeOptions(accuracy="fast"),
        UNTIMED,
        weights=weights,
        evaluation=qtool.EvaluationData(
            qtool.load_data(data, without=("labels",)), labels, "evaluation"
        ),
    )
    assert (tmp_path / "call.onnx").read_bytes() == (tmp_path / "command.onnx").read_bytes()
    assert file.size_bytes == command["size_bytes"]
    assert file.float_size_bytes == command["float_size_bytes"]
    assert file.accuracy is not None
    assert [m.values[1] for m in file.accuracy.metrics] == [
        m["values"][1] for m in command["metrics"]
    ]
    assert file.passed
    assert str(file).startswith(f"{tmp_path / 'call.onnx'}  ")
    assert dict(file.summary().rows)["size"].startswith(number_texts.size(file.size_bytes))


def test_the_suffix_implies_format_and_target(tmp_path: Path) -> None:
    nets, path = "tests.mistakes.nets", tmp_path / "net.tflite"
    line = ["quantize", f"{nets}:image_net", "--data", f"{nets}:images", "--accuracy", "fast"]
    shown = CliRunner().invoke(main, [*line, "--seconds", "0", "-o", str(path)])
    assert shown.exit_code == 0, shown.output
    assert ", for tflite" in shown.stdout


def test_the_format_of_a_calibration_implies_its_target(tmp_path: Path) -> None:
    net, path = [DIGITS, "--weights", str(EXAMPLE / "weights.safetensors")], tmp_path / "net.calib"
    line = ["calibrate", *net, "--data", DATA, "--accuracy", "fast", "--format", "tflite"]
    shown = CliRunner().invoke(main, [*line, "-o", str(path)])
    assert shown.exit_code == 0, shown.output
    calibration = qtool.Calibration.load(path)
    assert calibration.target == "tflite"
    assert str(calibration).splitlines()[:2] == [
        "Calibration  static, for tflite",
        f"  samples  {calibration.samples}",
    ]
    assert repr(calibration).startswith(f"<Calibration: {calibration.samples} samples, ")
    line = ["convert", *net, "--calibration", str(path), "--seconds", "0"]
    shown = CliRunner().invoke(main, [*line, "-o", str(tmp_path / "net.tflite")])
    assert shown.exit_code == 0, shown.output


def test_weights_alone_need_no_data(tmp_path: Path) -> None:
    model, path = image_net(), tmp_path / "float.onnx"
    qtool.capture_model(model, IMAGES).export_float(path)
    line = ["quantize", str(path), "--mode", "weight-only", "--seconds", "0"]
    shown = CliRunner().invoke(main, [*line, "-o", str(tmp_path / "int8.onnx")])
    assert shown.exit_code == 0, shown.output
    assert "SQNR is that of random inputs" in shown.output
    stated = re.search(r"SQNR +([0-9.]+) dB", shown.stdout)
    assert stated is not None
    x = np.random.default_rng(1).uniform(-1, 1, (256, 3, 8, 8)).astype(np.float32)
    sessions = [ort.InferenceSession(f) for f in (path, tmp_path / "int8.onnx")]
    y, z = (s.run(None, {s.get_inputs()[0].name: x})[0] for s in sessions)
    assert abs(10 * np.log10((y**2).sum() / ((y - z) ** 2).sum()) - float(stated[1])) < 3  # of 4
