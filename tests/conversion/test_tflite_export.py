"""TFLite files from quantized models: equal to the integer engine in every code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.tflite import litert, tflm
from qtool.backends.tflite.file import load
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.core.errors import ExportError, FileError, OptionError, VerificationError
from qtool.verification.tflite import compare_litert_codes
from tests.passes.differential import Function
from tests.planning.targets.converted import converted, images, samples

needs_litert = pytest.mark.skipif(litert.version() is None, reason="LiteRT is not installed")
needs_tflm = pytest.mark.skipif(tflm.version() is None, reason="tflite-micro is not installed")


def kinds(path: Path) -> Counter[str]:
    return Counter(op.name for op in load(path).operators)


@pytest.mark.parametrize("name", ["residual_concat", "depthwise", "activations", "digits"])
def test_a_file_computes_the_plan(name: str, tmp_path: Path) -> None:
    """With LiteRT each code is compared with it, else with the engine alone."""
    path, model = tmp_path / "model.tflite", converted(name, "tflite")
    has_float = name == "activations"
    if has_float and litert.version() is None:
        pytest.skip("parts in float need LiteRT")
    result = model.export(path)
    assert result is not None
    assert result.passed
    assert result.parity.steps is not None
    assert result.parity.steps.compared > 5
    if litert.version() is not None:
        assert result.exactness is not None
        assert result.exactness.exact
        assert (result.exactness.float_steps > 0) is has_float
    else:
        assert "LiteRT is not installed" in str(result)
    assert kinds(path)["TRANSPOSE"] == 0


@needs_litert
def test_a_wrong_scale_is_found(tmp_path: Path) -> None:
    """The engine computes a file whose bytes have changed since it was read."""
    path = tmp_path / "model.tflite"
    converted("digits", "tflite").export(path, verify=False)
    file, batch = TfliteFile(path), [samples("digits")[:8].numpy()]
    assert compare_litert_codes(file, [batch]).exact
    at = next(i for i, op in enumerate(file.model.operators) if op.name == "ADD")
    out = file.model.tensors[file.model.operators[at].outputs[0]]
    assert out.quantization is not None
    scale = out.quantization.scale.tobytes()
    wrong = (out.quantization.scale * np.float32(1.1)).tobytes()
    path.write_bytes(path.read_bytes().replace(scale, wrong))
    result = compare_litert_codes(file, [batch])
    assert not result.passed
    assert result.first == out.name


LAYOUTS = {
    "nhwc": ((0, 2, 3, 1), "float", 0),
    "nchw": ((0, 1, 2, 3), "float", 1),
    "codes": ((0, 2, 3, 1), "int8", 0),
}


@pytest.mark.parametrize(("order", "interface", "moved"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_interface_is_what_was_asked_for(
    order: tuple[int, ...], interface: str, moved: int, tmp_path: Path
) -> None:
    path, layout = tmp_path / "model.tflite", "nhwc" if order[1] == 2 else "nchw"
    model = converted("residual_concat", "tflite")
    model.export(path, layout=layout, interface=interface)
    file = TfliteFile(path)
    assert file.inputs[0].order == order
    assert file.inputs[0].dtype == ("int8" if interface == "int8" else "float32")
    assert file.inputs[0].shape[0] == -1
    assert kinds(path)["TRANSPOSE"] == moved
    assert kinds(path)["QUANTIZE"] == (0 if interface == "int8" else 1)
    x = samples("residual_concat")[:4]
    program = file.program("tflite")
    (result,) = file.engine_codes(program, [x.numpy()])
    with torch.no_grad():
        expected = model(x).numpy()
    params = file.outputs[0].params
    real = result if params is None else params.dequantize(torch.from_numpy(result)).numpy()
    assert np.abs(real - expected).max() < 0.1 * np.abs(expected).max()


def test_other_names_of_layouts_and_targets_are_refused(tmp_path: Path) -> None:
    model = converted("digits", "tflite")
    with pytest.raises(OptionError, match="unknown layout 'hwcn'"):
        model.export(tmp_path / "model.tflite", layout="hwcn")
    with pytest.raises(OptionError, match="unknown interface 'int4'"):
        model.export(tmp_path / "model.tflite", interface="int4")
    with pytest.raises(ExportError, match="does not support format 'tflite'"):
        converted("residual_concat", "openvino").export(tmp_path / "model.tflite")
    assert not (tmp_path / "model.tflite").exists()


def test_a_flattened_image_moves_the_columns_of_the_next_layer(tmp_path: Path) -> None:
    """No TRANSPOSE and no GATHER: [N, H, W, C] is flattened as it lies."""
    network = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    path = tmp_path / "model.tflite"
    result = qtool.quantize(network.eval(), [images(16)], target="tflite").export(path)
    assert result is not None
    assert result.passed
    assert kinds(path) == Counter(QUANTIZE=1, CONV_2D=1, RESHAPE=1, FULLY_CONNECTED=1, DEQUANTIZE=1)


@needs_tflm
def test_a_microcontroller_computes_the_same_codes(tmp_path: Path) -> None:
    path, model = tmp_path / "model.tflite", converted("digits", "tflite-micro")
    result = model.export(path)
    assert result is not None
    assert "identical to the integer engine" in str(result)
    assert "arena" in str(result)
    assert tflm.arena(path).total > 10_000


def test_microcontrollers_take_no_float(tmp_path: Path) -> None:
    network = Function(lambda x, a, b: b(torch.exp(a(x))), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1))
    model = qtool.quantize(network.eval(), [images(8)], target="tflite-micro")
    with pytest.raises(ExportError, match=r"'exp' \(EXP\) stays in float"):
        model.export(tmp_path / "model.tflite")


def test_c_source_has_the_bytes_of_the_file(tmp_path: Path) -> None:
    model, path = converted("digits", "tflite-micro"), tmp_path / "net.cc"
    model.export(path, format="c-array")
    model.export(tmp_path / "net.tflite")
    body = path.read_text().split("{")[1].split("}")[0]
    data = bytes(int(b, 16) for b in body.replace("\n", " ").split(",") if b.strip())
    assert data == (tmp_path / "net.tflite").read_bytes()
    main = (tmp_path / "net_main.cc").read_text()
    assert "resolver.AddConv2D();" in main
    assert "net_size" in (tmp_path / "net.h").read_text()
    with pytest.raises(FileError, match=r"is written as \.cc or \.cpp or \.c;"):
        model.export(tmp_path / "net.txt", format="c-array")


@needs_litert
def test_litert_refuses_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    converted("digits", "tflite").export(path, verify=False)
    with pytest.raises(VerificationError, match="takes 1 inputs, not 2"):
        litert.run_reference(path, [np.zeros((1, 8, 8, 1), np.float32)] * 2)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(VerificationError, match="LiteRT"):
        litert.run_reference(path, [np.zeros((1, 8, 8, 1), np.float32)])
