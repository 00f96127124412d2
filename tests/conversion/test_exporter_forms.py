"""Forms that exporters write, in the runtimes of the targets: transposed convolutions, Resize."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from qtool.cli import main

import qtool
from qtool.backends.onnxruntime.session import VERSION
from qtool.core.errors import ExportError
from qtool.plugins.tflite import litert
from tests.frontends.onnx.files import behind_conv, images, loaded

STRIDED = "strides = [2, 2]"
TRANSPOSED = {
    "same": f'{STRIDED}, auto_pad = "SAME_UPPER"',
    "a size": f"{STRIDED}, output_shape = [15, 16]",
    "uneven": f"{STRIDED}, pads = [0, 1, 2, 0], output_padding = [1, 0]",
}
SUFFIX = {"tflite": "tflite"}
AXES = pytest.mark.skipif(
    VERSION < (1, 24),
    reason="this ONNX Runtime fails on a kept Resize with axes; it is refused, or its sizes fixed",
)
LAST = "y0 = Conv <kernel_shape = [3, 3]> (t, w2, b)"


def _exported(text: str, target: str, folder: Path, sizes: str) -> Path:
    """Convert, check that the float and the planned model agree, and write the verified file."""
    model, x = loaded(behind_conv(text, sizes=sizes), folder), images(8)
    quantized = qtool.quantize(model, [x] * 2, target=target, accuracy="fast")
    float_session = ort.InferenceSession(str(folder / "model.onnx"))
    (expected,) = float_session.run(None, {"x": x.numpy()})
    difference = np.abs(quantized(x).detach().numpy() - expected).max()
    assert difference < 0.1 * np.abs(expected).max()
    path = folder / f"int8.{SUFFIX.get(target, 'onnx')}"
    quantized.export(path)
    return path


PAIRS = [  # each form in ONNX Runtime, and each target
    *((form, "onnxruntime") for form in TRANSPOSED),
    *(("same", "openvino"), ("a size", "tflite"), ("uneven", "qnn")),
]


@pytest.mark.parametrize(("form", "target"), PAIRS)
def test_transposed_convolutions(form: str, target: str, tmp_path: Path) -> None:
    if target == "tflite" and litert.version() is None:
        pytest.skip("LiteRT is not installed")
    text = f"t = ConvTranspose <{TRANSPOSED[form]}> (h, w2, b) {LAST}"
    _exported(text, target, tmp_path, "N,3,8,8")


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        pytest.param(
            f"""z = Constant <value_ints = [22, 18]> ()
            t = Resize <mode = "cubic", axes = [-1, 2]> (h, , , z) {LAST}""",
            (2, 4, 16, 20),
            id="kept",
            marks=AXES,
        ),
        pytest.param(
            f"""s = Conv <kernel_shape = [3, 3], strides = [2, 2]> (h, w2, b)
            z = Shape <start = 2> (x) t = Resize <mode = "linear", axes = [2, 3]> (s, , , z)
            {LAST}""",
            (2, 4, 9, 12),
            id="computed sizes",
        ),
        pytest.param(
            f"""s = Conv <kernel_shape = [3, 3], strides = [2, 2]> (h, w2, b)
            z = Shape <start = 2> (x) t = Resize <mode = "cubic", axes = [2, 3]> (s, , , z)
            {LAST}""",
            (2, 4, 9, 12),
            id="kept, of computed sizes",
            marks=AXES,
        ),
        pytest.param(
            f"""z = Constant <value_floats = [1.0, 1.0, 0.5, 0.7]> ()
            t = Resize <mode = "cubic"> (h, , z) {LAST}""",
            (2, 4, 3, 7),
            id="cubic, smaller",
        ),
        pytest.param(
            f"""z = Constant <value_ints = [9, 9]> () t = Resize <mode = "cubic", axes = [2, 3],
            keep_aspect_ratio_policy = "not_larger"> (h, , , z) {LAST}""",
            (2, 4, 5, 7),
            id="the same ratio",
            marks=AXES,
        ),
    ],
)
def test_resize_of_some_axes_at_another_size(
    text: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    path = _exported(text, "onnxruntime", tmp_path, "N,3,h,v")
    x = np.random.default_rng(0).normal(size=(2, 3, 11, 14)).astype(np.float32)
    expected, actual = (
        ort.InferenceSession(str(p)).run(None, {"x": x})[0] for p in (tmp_path / "model.onnx", path)
    )
    assert actual.shape == expected.shape == shape
    assert np.abs(actual - expected).max() < 0.2 * np.abs(expected).max()


def test_a_kept_form_that_tflite_has_not_is_named(tmp_path: Path) -> None:
    text = """z = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()
        y0 = Resize <mode = "cubic"> (h, , z)"""
    with pytest.raises(ExportError, match="Resize2: the ONNX operator Resize, in a"):
        _exported(text, "tflite", tmp_path, "N,3,8,8")
    np.save(tmp_path / "x.npy", images(8).numpy())
    files = [str(tmp_path / name) for name in ("model.onnx", "x.npy", "m.calib")]
    command = ["calibrate", files[0], "--data", files[1], "-o", files[2], "--target", "tflite"]
    result = CliRunner().invoke(main, command, prog_name="qtool")
    assert result.exit_code == 2
    assert "calibrating" not in result.output
    assert "Resize2: the ONNX operator Resize, in a" in result.output
    result = CliRunner().invoke(main, [*command, "--format", "qdq"], prog_name="qtool")
    assert result.exit_code == 0, result.output
