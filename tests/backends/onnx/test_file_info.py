"""What a file says of itself and of its source."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

import qtool
from qtool.backends.onnx.content_digest import content_digest
from qtool.backends.onnx.file_info import FileInfo, NodeInfo, maker_version
from qtool.backends.onnx.origin import read_source_metadata
from qtool.core.errors import VerificationError
from qtool.core.types import Change, ObserverSpec
from qtool.frontends.onnx.onnx_file import load_onnx
from qtool.frontends.onnx.onnx_module import OnnxModule
from qtool.planning.recipe import Recipe
from qtool.plugins.tflite.file import load
from tests.frontends.onnx.files import behind_conv, images

INFO = FileInfo(
    "1.2",
    "onnxruntime",
    "abc",
    ObserverSpec("percentile", (("p", 99.9), ("bins", 2048))),
    Recipe.of([{"select": "head.*", "as": "float"}], "dynamic"),
    (NodeInfo("conv", "conv", "integer", "", 100), NodeInfo("sin", "sin", "float", "why", 0)),
    (Change("smooth-quant", 2, "wide", {"a": torch.rand(3), "b": torch.rand(2, 4)}),),
)


def model(metadata: dict[str, str]) -> onnx.ModelProto:
    found = onnx.ModelProto()
    for key, value in metadata.items():
        found.metadata_props.add(key=key, value=value)
    return found


def test_it_reads_back() -> None:
    found = FileInfo.of(model(INFO.metadata()))
    assert found is not None
    fields = ("version", "target", "plan", "observer", "recipe", "nodes")
    assert all(getattr(found, f) == getattr(INFO, f) for f in fields)
    (change,) = found.changes
    assert (change.step, change.count, change.reason) == ("smooth-quant", 2, "wide")
    assert all(np.array_equal(change.arrays[k], a) for k, a in INFO.changes[0].arrays.items())


def test_files_of_others_say_nothing() -> None:
    assert FileInfo.of(model({})) is None
    assert maker_version(model({})) is None
    assert maker_version(model(INFO.metadata())) == "1.2"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("qtool_nodes", "{"),
        ("qtool_nodes", "[1]"),
        ("qtool_nodes", json.dumps([{"node": "a"}])),
        ("qtool_nodes", json.dumps([dict.fromkeys(("node", "op", "form", "reason", "macs"), 1)])),
        ("qtool_nodes", "[" * 100_000),
        ("qtool_changes", "[3]"),
        ("qtool_changes", json.dumps([{"step": "smooth", "arrays": {"a": [[3], "!"]}}])),
        ("qtool_observer", "7"),
        ("qtool_recipe", json.dumps({"mode": "no such"})),
        ("qtool_recipe", json.dumps([{"as": "float"}])),
    ],
)
def test_damage_is_refused_in_a_sentence(key: str, text: str) -> None:
    with pytest.raises(VerificationError, match=r"metadata.*convert again") as caught:
        FileInfo.of(model(INFO.metadata() | {key: text}))
    assert "\n" not in str(caught.value)


PROPERTIES = {
    "names": "{0: 'cat', 1: 'dög'}",
    "": "an empty key",
    "\x1b[31m<b>\n": "\x1b[2J",  # of a terminal and of a page
    "looks like a self-test": '{"format":2,"content":"00000000000000000000000000000000"}',
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> OnnxModule:
    model = behind_conv("r = Relu (h)\ny0 = MatMul (r, m)")
    matrix = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "m"))
    onnx.helper.set_model_props(model, {**PROPERTIES, "qtool_version": "0.0"})
    model.model_version, model.domain, model.doc_string = 7, "com.example", "of a trainer"
    model.graph.name, model.graph.doc_string = "main graph", "of an exporter"
    model.graph.input[0].doc_string = "RGB"
    shape = [None, 4, 8, 8]
    output = onnx.helper.make_tensor_value_info("y0", onnx.TensorProto.FLOAT, shape, "logits")
    model.graph.output[0].CopyFrom(output)
    path = tmp_path_factory.mktemp("source") / "model.onnx"
    apart = {"location": "model.data", "size_threshold": 0}
    onnx.save(model, path, save_as_external_data=True, **apart)
    return load_onnx(path)


@pytest.mark.parametrize(
    ("format_", "options"),
    [
        ("qdq", {}),
        ("qoperator", {}),
        ("qdq", {"mode": "dynamic"}),
        ("qdq", {"mode": "weight-only"}),
        ("qdq", {"target": "openvino"}),
        ("blocks", {}),
        ("float", {}),
    ],
    ids=str,
)
def test_onnx_files_have_the_metadata_of_their_source(
    source: OnnxModule, tmp_path: Path, format_: str, options: dict[str, Any]
) -> None:
    path, data = tmp_path / "model.onnx", [images(8)]
    if format_ == "blocks":
        assert source.path is not None
        qtool.quantize_by_blocks(source.path, data, path, accuracy="fast")
    elif format_ == "float":
        qtool.capture_model(source, data[0]).export_float(path)
    else:
        qtool.quantize(source, data, accuracy="fast", **options).export(path, format=format_)

    about = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).get_modelmeta()
    own = {k: v for k, v in about.custom_metadata_map.items() if not k.startswith("qtool_")}
    assert own == PROPERTIES
    assert (about.version, about.domain, about.description) == (7, "com.example", "of a trainer")
    assert about.custom_metadata_map["qtool_version"] != "0.0"
    model = onnx.load(path)
    assert read_source_metadata(model) == read_source_metadata(source.model)
    qtool.inspect(path)
    if format_ not in ("blocks", "float"):
        assert qtool.verify(path).self_test.passed
        digest = content_digest(path)
        model.metadata_props[-2].value += "!"
        onnx.save(model, path)
        assert content_digest(path) != digest


def test_a_tflite_file_has_them_as_json(source: OnnxModule, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    qtool.quantize(source, [images(8)], target="tflite", accuracy="fast").export(path)
    stored = json.loads(load(path).metadata["onnx_metadata"])
    assert stored == read_source_metadata(source.model).to_json()
    assert stored["properties"] == PROPERTIES
    assert qtool.verify(path).self_test.passed
