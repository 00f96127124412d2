"""Conversion with the scales of another tool: its codes, its gaps, and files of other models."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from torch import nn

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.core.errors import CalibrationError
from tests.needs import needs_vnni

VNNI = "onnxruntime-x86-vnni"  # no scale changes there, neither for saturation nor for other CPUs


def _network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(64, 5),
    ).eval()  # fmt: skip


IMAGES = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class _Reader(CalibrationDataReader):
    """Darker images: other ranges than those that qtool would observe."""

    def __init__(self) -> None:
        self.batches: Iterator[dict[str, Any]] = iter([{"input": 0.95 * IMAGES.numpy()}])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.batches, None)


def _export(path: Path, network: nn.Module) -> Path:
    return qtool.capture_model(network, IMAGES[:2]).export_float(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float file, and that of onnxruntime.quantization."""
    place = tmp_path_factory.mktemp("scales")
    _export(place / "float.onnx", _network())
    options = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    files = str(place / "float.onnx"), str(place / "other.onnx")
    quantize_static(*files, _Reader(), per_channel=True, **options)
    return place


def _model(folder: Path) -> Any:
    return qtool.load_onnx(folder / "float.onnx")


def _codes(path: Path) -> list[Any]:
    """The codes of all activations, in the order of the graph."""
    model = onnx.load(path)
    zeros = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    nodes = [n for n in model.graph.node if n.op_type == "QuantizeLinear"]
    for node in nodes:
        kind = onnx.helper.np_dtype_to_tensor_dtype(zeros[node.input[2]].dtype)
        model.graph.output.append(onnx.helper.make_tensor_value_info(node.output[0], kind, None))
    onnx.save(model, path.with_suffix(".codes.onnx"))
    runtime = session(str(path.with_suffix(".codes.onnx")))
    values = dict(
        zip((o.name for o in runtime.get_outputs()), run(runtime, [IMAGES.numpy()]), strict=True)
    )
    return [values[n.output[0]].astype(np.int64) for n in nodes]


def test_codes_are_those_of_the_other_file(folder: Path, tmp_path: Path) -> None:
    quantized = qtool.convert(_model(folder), scales=folder / "other.onnx", target=VNNI)
    assert "there is no calibration: no step" in " ".join(quantized.notes)
    quantized.export(tmp_path / "own.onnx")
    matched = _equal_codes(tmp_path / "own.onnx", folder / "other.onnx")
    assert len(matched) >= 4
    assert all(matched)
    observed = qtool.quantize(_model(folder), [IMAGES], target=VNNI, recover=[])
    observed.export(tmp_path / "observed.onnx")
    assert not any(_equal_codes(tmp_path / "observed.onnx", folder / "other.onnx"))


def _equal_codes(own: Path, other: Path) -> list[bool]:
    """For each tensor of codes, whether the other file has one that is equal."""
    theirs = _codes(other)
    return [any(np.array_equal(a, b) for b in theirs) for a in _codes(own)]


def test_what_is_not_taken_is_listed_with_the_reason(folder: Path) -> None:
    notes = qtool.convert(_model(folder), scales=folder / "other.onnx", target=VNNI).notes
    assert notes[0].startswith("10 of 11 scales are those of ")
    assert "(onnx.quantize)" in notes[0]
    assert any("not taken, since it is float or fused here: " in n for n in notes)


def test_portable_scales_are_listed(folder: Path) -> None:
    """Weights of full range can saturate 16 bits on CPUs without VNNI."""
    notes = qtool.convert(_model(folder), scales=folder / "other.onnx").notes
    assert any("scale widened in" in n for n in notes)


def test_recovery_with_a_calibration(folder: Path, tmp_path: Path) -> None:
    model = _model(folder)
    calibration = qtool.calibrate(model, [IMAGES])
    plain, recovered = (
        qtool.convert(model, calibration, scales=folder / "other.onnx", **options)
        for options in ({"recover": ()}, {})
    )
    assert [r.name for r in plain.plan.rewrites] == []
    assert [r.name for r in recovered.plan.rewrites] == ["gptq"]
    verification = recovered.export(tmp_path / "recovered.onnx")
    assert verification.exactness.passed


def _encodings(folder: Path, path: Path, factor: float = 1.0) -> Path:
    """Encodings with the scales of the QDQ file, those of weights times a factor."""
    model = onnx.load(folder / "other.onnx")
    values = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    encodings = []
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            scale, zero = values[node.input[1]], values[node.input[2]]
            encoding = {"y_scale": float(scale), "y_zero_point": int(zero), "output_dtype": "uint8"}
            encodings.append({"name": node.input[0], **encoding})
        elif node.input[0] in values and values[node.input[0]].dtype == np.int8:
            scales = (values[node.input[1]] * factor).tolist()
            name = node.input[0].removesuffix("_quantized")
            encodings.append({"name": name, "y_scale": scales, "output_dtype": "int8", "axis": 0})
    path.write_text(json.dumps({"version": "2.0.0", "encodings": encodings}), "utf-8")
    return path


def test_encodings_give_the_scales_of_the_same_file(folder: Path, tmp_path: Path) -> None:
    params = [
        qtool.convert(_model(folder), scales=source, target=VNNI).parameters
        for source in (folder / "other.onnx", _encodings(folder, tmp_path / "a.encodings"))
    ]
    assert params[0].keys() == params[1].keys()
    assert all(torch.equal(params[0][n].scale, params[1][n].scale) for n in params[0])


def test_the_lowest_code_stays_where_no_sum_can_overflow(folder: Path, tmp_path: Path) -> None:
    file = _encodings(folder, tmp_path / "a.encodings", factor=127 / 128)
    wide = qtool.convert(_model(folder), scales=file, target=VNNI)
    assert wide.parameters["0.weight"].qtype.qmin == -128
    note = "weights with the code -128 have -127 here"
    assert not any(n.startswith(note) for n in wide.notes)
    wide.export(tmp_path / "wide.onnx")
    codes = {i.name: i for i in onnx.load(tmp_path / "wide.onnx").graph.initializer}
    assert numpy_helper.to_array(codes["0.weight.codes"]).min() == -128
    portable = qtool.convert(_model(folder), scales=file)
    assert portable.parameters["0.weight"].qtype.qmin == -127
    assert any(n.startswith(note) for n in portable.notes)


def test_scales_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    other = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)).eval()
    captured = qtool.capture_model(other, torch.randn(2, 6))
    captured.export_float(tmp_path / "flat.onnx")
    with pytest.raises(CalibrationError, match=r"the model has \d of its 11 tensors \(\d+%\)"):
        qtool.convert(qtool.load_onnx(tmp_path / "flat.onnx"), scales=folder / "other.onnx")


def test_scales_of_other_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    _export(tmp_path / "float.onnx", _network(seed=7))
    with pytest.raises(
        CalibrationError, match=r"the weights of 4 layers are not those of the model"
    ):
        qtool.convert(_model(tmp_path), scales=folder / "other.onnx")


def test_a_model_of_torch_has_no_names_of_a_file(folder: Path) -> None:
    with pytest.raises(CalibrationError, match=r"give the float \.onnx file"):
        qtool.convert(_network(), scales=folder / "other.onnx")
    with pytest.raises(CalibrationError, match="give a calibration, a file of scales, or both"):
        qtool.convert(_model(folder))


@needs_vnni
def test_verify_says_what_the_other_file_does_on_other_cpus(folder: Path) -> None:
    check = qtool.verify(folder / "other.onnx", samples=8)
    avx2 = next(c for c in check.portability.cpus if c.profile == "onnxruntime-avx2")
    assert avx2.nodes
    assert "other CPUs  on x86-64 without VNNI (AVX2): " in str(check.summary())


def _symmetric_activations(folder: Path, path: Path) -> Path:
    options = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    extra = {"extra_options": {"ActivationSymmetric": True}}
    files = str(folder / "float.onnx"), str(path)
    quantize_static(*files, _Reader(), per_channel=True, **options, **extra)
    return path


def test_behind_a_relu_a_symmetric_scale_has_the_lowest_code_for_zero(
    folder: Path, tmp_path: Path
) -> None:
    """A kernel with the ReLU fused clamps at its lowest code; the step stays that of the file."""
    other = _symmetric_activations(folder, tmp_path / "other.onnx")
    params = qtool.convert(_model(folder), scales=other, target=VNNI).parameters
    assert int(params["2"].zero_point) == 0
    assert int(params["input"].zero_point) == 128
    model = onnx.load(other)
    (scale,) = (numpy_helper.to_array(i) for i in model.graph.initializer if i.name == "2_scale")
    assert float(params["2"].scale) == float(scale)


def test_padded_input_channels_do_not_hide_a_layer(folder: Path) -> None:
    """The first layer has three input channels, and four on the default target."""
    quantized = qtool.convert(_model(folder), scales=folder / "other.onnx")
    assert not any("another shape" in note for note in quantized.notes)
