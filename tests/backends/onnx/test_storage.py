"""Where tensors are stored, and those that several nodes share."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnx import storage
from qtool.backends.onnx.cross_attention import refer, stored_places
from qtool.backends.onnx.storage import atomic_save, load, outline, save, tensor_bytes
from tests.evaluation.onnx_files import linear_file


def network(seed: int = 0) -> onnx.ModelProto:
    """x [n, 40] -> x W + b: W of 6,400 bytes, b of 160."""
    random = np.random.default_rng(seed)
    w, b = random.normal(size=(40, 40)), random.normal(size=40)
    stored = [
        numpy_helper.from_array(v.astype(np.float32), n) for n, v in (("w", w), ("b", b), ("v", w))
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="first"),
        helper.make_node("MatMul", ["h", "v"], ["y"], name="second"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 40]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored, doc_string="said")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"key": "value"})
    return model


def plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """As it is without a word on where its weights come from."""
    for tensor in model.graph.initializer:
        tensor.ClearField("data_location")
    return model


def outputs(path: Path) -> np.ndarray:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.eye(40, dtype=np.float32)})[0]


def names(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir())


def test_one_file_where_it_can_be(tmp_path: Path) -> None:
    save(network(), tmp_path / "m.onnx")
    assert names(tmp_path) == ["m.onnx"]
    assert load(tmp_path / "m.onnx") == network()


@pytest.mark.parametrize("forced", [True, False])
def test_weights_apart_are_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forced: bool
) -> None:
    if not forced:
        monkeypatch.setattr(storage, "LIMIT", 10_000)
    save(network(), tmp_path / "m.onnx", external=forced)
    assert names(tmp_path) == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx").stat().st_size < 1000 + 160
    assert plain(load(tmp_path / "m.onnx")) == network()
    onnx.save(network(), tmp_path / "plain.onnx")
    assert np.array_equal(outputs(tmp_path / "m.onnx"), outputs(tmp_path / "plain.onnx"))


def test_offsets_are_pages_and_small_tensors_stay(tmp_path: Path) -> None:
    save(network(), tmp_path / "m.onnx", external=True)
    stored = onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer
    places = {t.name: {e.key: e.value for e in t.external_data} for t in stored}
    assert places["b"] == {}
    assert places["w"] == {"location": "m.onnx.data", "offset": "0", "length": "6400"}
    assert places["v"] == {"location": "m.onnx.data", "offset": "8192", "length": "6400"}


def test_a_model_is_replaced_together_with_its_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with atomic_save(network(0), path, external=True) as temporary:
        before = outputs(temporary)
        assert not path.exists()
    first = set(names(tmp_path)) - {"m.onnx"}
    assert len(first) == 1
    with atomic_save(network(1), path, external=True) as temporary:
        assert np.array_equal(outputs(path), before)  # what was there is whole all the time
        assert not np.array_equal(outputs(temporary), before)
    assert len(names(tmp_path)) == 2
    assert not first & set(names(tmp_path))
    assert plain(load(path)) == network(1)
    with atomic_save(network(0), path):
        pass
    assert names(tmp_path) == ["m.onnx"]


@pytest.mark.parametrize("seed", [0, 1])
def test_after_a_failure_all_is_as_it_was(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "m.onnx"
    with atomic_save(network(0), path, external=True):
        pass
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    with pytest.raises(KeyError), atomic_save(network(seed), path, external=True):
        raise KeyError
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


def test_a_link_stays_and_weights_lie_beside_the_file(tmp_path: Path) -> None:
    home, link = tmp_path / "home", tmp_path / "link.onnx"
    home.mkdir()
    link.symlink_to(home / "m.onnx")
    with atomic_save(network(), link, external=True) as temporary:
        expected = outputs(temporary)
    assert link.is_symlink()
    assert len(names(home)) == 2
    assert np.array_equal(outputs(home / "m.onnx"), expected)


def test_what_one_message_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.fits_one_message(network())
    size = len(network().SerializeToString())
    monkeypatch.setattr(storage, "LIMIT", size - 1)
    assert not storage.fits_one_message(network())
    monkeypatch.setattr(storage, "LIMIT", size + 4 * 1024)
    assert storage.fits_one_message(network())


def test_data_of_others_stays(tmp_path: Path) -> None:
    others = ["m.onnx.data", "m.onnx.0123.data", "mXonnx.0123456789abcdef.data"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    with atomic_save(network(), tmp_path / "m.onnx"):
        pass
    assert names(tmp_path) == sorted(["m.onnx", *others])


def test_an_outline_has_all_but_the_weights() -> None:
    bare = outline(network())
    assert [t.name for t in bare.graph.initializer] == ["b"]
    assert [i.name for i in bare.graph.input] == ["x", "w", "v"]
    assert bare.graph.doc_string == "said"
    onnx.checker.check_model(bare, full_check=True)
    mine = onnx.shape_inference.infer_shapes(bare).graph.value_info
    assert mine == onnx.shape_inference.infer_shapes(network()).graph.value_info
    assert len(mine) == 1


@pytest.mark.parametrize(
    ("kind", "dims", "expected"),
    [
        (TensorProto.FLOAT, [2, 3], 24),
        (TensorProto.INT8, [5], 5),
        (TensorProto.UINT4, [3, 3], 5),
        (TensorProto.BOOL, [], 1),
        (TensorProto.BFLOAT16, [4], 8),
        (TensorProto.STRING, [4], 0),
    ],
)
def test_bytes_of_a_tensor(kind: int, dims: list[int], expected: int) -> None:
    assert tensor_bytes(TensorProto(data_type=kind, dims=dims)) == expected


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
