"""Graphs whose weights are ranges of bytes of other ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from qtool.backends.onnx.shared_weights import refer, stored_places
from tests.evaluation.onnx_files import linear_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "onnx").mkdir()
    weight = np.random.default_rng(0).normal(size=(300, 7))
    path = linear_file(tmp_path / "onnx" / "model.onnx", weight)
    model = onnx.load(path)
    small = numpy_helper.from_array(np.float32([2]), "factor")
    model.graph.initializer.insert(0, small)
    model.graph.node[0].output[0] = "product"
    model.graph.node.append(helper.make_node("Mul", ["product", "factor"], ["y"]))
    model.metadata_props.add(key="a", value="b" * 300)
    onnx.save(model, path)
    return path


def test_the_places_hold_the_bytes(file: Path) -> None:
    model, data = onnx.load(file), file.read_bytes()
    places = stored_places(file, "there")
    assert places.keys() == {"w", "factor"}
    for tensor in model.graph.initializer:
        place = places[tensor.name]
        assert place.location == "there"
        assert data[place.offset : place.offset + place.length] == tensor.raw_data


def test_a_file_above_computes_the_same(file: Path) -> None:
    model = onnx.load(file)
    refer(model, stored_places(file, "onnx/model.onnx"), "onnx")
    above = file.parents[1] / "above.onnx"
    onnx.save(model, above)
    assert above.stat().st_size < 1000 < file.stat().st_size
    x = np.random.default_rng(1).normal(size=(4, 300)).astype(np.float32)
    ours, theirs = (ort.InferenceSession(p).run(None, {"x": x})[0] for p in (above, file))
    np.testing.assert_array_equal(ours, theirs)


def test_small_constants_and_those_without_a_place_stay(file: Path) -> None:
    model = onnx.load(file)
    places = stored_places(file, "onnx/model.onnx")
    refer(model, {"factor": places["factor"]}, "onnx")
    assert not any(t.external_data for t in model.graph.initializer)


def test_references_of_the_file_itself_are_kept(file: Path) -> None:
    onnx.save(onnx.load(file), file, save_as_external_data=True, location="weights.data")
    model = onnx.load(file, load_external_data=False)
    refer(model, stored_places(file, "onnx/model.onnx"), "onnx")
    locations = {e.value for t in model.graph.initializer for e in t.external_data
                 if e.key == "location"}  # fmt: skip
    assert locations == {"onnx/weights.data"}
