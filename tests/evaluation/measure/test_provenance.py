"""A file says what made it: the same for the same conversion, other for other weights and data."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import onnx
import torch
from torch import nn

import qtool
from qtool.core.data.calibration_samples import DataDigest, merged_digest
from qtool.core.versions import own_version, version_of
from qtool.evaluation.measure.provenance import Provenance, provenance
from qtool.plugins.tflite.file import Model, Operator, PortNames, Tensor, to_bytes


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


def data(seed: int = 0) -> torch.Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))


def made(folder: Path, model: nn.Module, batches: list[torch.Tensor]) -> Provenance:
    path = folder / "model.onnx"
    qtool.quantize(model, batches, accuracy="fast").export(path)
    return provenance(path)


def test_what_a_file_says(tmp_path: Path) -> None:
    result = made(tmp_path, network(), [data()])
    assert result.qtool == own_version()
    assert result.sha256 == {
        "model.onnx": hashlib.sha256((tmp_path / "model.onnx").read_bytes()).hexdigest()
    }
    assert result.origin.samples == 16
    assert result.origin.versions["onnx"] == version_of("onnx")
    assert result.target == "onnxruntime"
    text = str(result)
    for part in ("written by", result.origin.model, result.origin.weights, result.origin.data):
        assert part in text
    assert json.loads(json.dumps(result.to_json()))["origin"]["samples"] == 16


def test_the_same_data_in_another_order_and_split(tmp_path: Path) -> None:
    first = made(tmp_path, network(), [data()])
    second = made(tmp_path, network(), [data()[8:], data()[:8]])
    assert first.origin == second.origin


def test_other_weights_and_other_data(tmp_path: Path) -> None:
    origin = made(tmp_path, network(), [data()]).origin
    weights = made(tmp_path, network(1), [data()]).origin
    other = made(tmp_path, network(), [data(1)]).origin
    assert (weights.model != origin.model, weights.weights != origin.weights) == (True, True)
    assert weights.data == origin.data
    assert other == replace(origin, data=other.data if other else "")
    assert other != origin


def test_merged_calibrations_have_the_digest_of_all_data() -> None:
    parts = [qtool.calibrate(network(), [rows]) for rows in data().chunk(2)]
    whole = qtool.calibrate(network(), [data()])
    assert parts[0].merge(parts[1]).data == whole.data
    assert qtool.Calibration.from_bytes(whole.to_bytes()).data == whole.data
    assert replace(parts[0], data="").merge(parts[1]).data == ""


def test_digests_add_up() -> None:
    whole, first, second = DataDigest(), DataDigest(), DataDigest()
    whole.add([data()])
    first.add([data()[:5]])
    second.add([data()[5:]])
    assert merged_digest(first.text(), second.text()) == whole.text()
    assert merged_digest(DataDigest().text(), whole.text()) == whole.text()


def test_files_of_other_tools_and_of_former_versions(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    made(tmp_path, network(), [data()])
    model = onnx.load(path)
    kept = {p.key: p.value for p in model.metadata_props if p.key != "qtool_origin"}
    onnx.helper.set_model_props(model, kept)
    onnx.save(model, path)
    assert "former version" in str(provenance(path))
    del model.metadata_props[:]
    model.producer_name, model.producer_version = "pytorch", "9"
    onnx.save(model, path)
    result = provenance(path)
    assert (result.qtool, result.origin, result.producer) == (None, None, "pytorch 9")
    assert "not a file of qtool" in str(result)


def test_a_tflite_file_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    qtool.quantize(network(), [data()], accuracy="fast", target="tflite").export(path, verify=False)
    result, onnx_file = provenance(path), made(tmp_path, network(), [data()])
    assert result.sha256 == {"model.tflite": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert (result.qtool, result.producer) == (own_version(), f"qtool {own_version()}")
    assert result.target == "tflite"
    assert result.origin == onnx_file.origin
    assert result.self_test.startswith("self-test: ")
    assert "1 integer tensors (tflite, tflite-2)" in result.self_test
    text = str(result)
    for part in ("written by qtool", result.origin.weights, result.origin.data):
        assert part in text


def test_a_tflite_file_of_another_tool(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    tensors = Tensor("x", "float32", (1, 4)), Tensor("y", "float32", (1, 4))
    relu = Operator("RELU", (0,), (1,), {}, 1)
    names = PortNames(("x",), ("y",))
    path.write_bytes(to_bytes(Model(tensors, (relu,), (0,), (1,), "another tool", names=names)))
    result = provenance(path)
    assert (result.qtool, result.origin, result.producer) == (None, None, "another tool")
    assert "not a file of qtool" in str(result)
