"""Sparse tensors are read as the dense ones that ONNX Runtime makes of them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper

from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnx.storage import load
from qtool.core.errors import CaptureError, FileError
from qtool.frontends.onnx.onnx_file import load_onnx

WEIGHT = np.array([[0, 2, 0, 0], [1, 0, 0, -3]], np.float32)


def _sparse(pairs: bool = False, name: str = "w") -> onnx.SparseTensorProto:
    places = np.flatnonzero(WEIGHT)
    values = numpy_helper.from_array(WEIGHT.ravel()[places], name)
    at = np.stack(np.unravel_index(places, WEIGHT.shape), 1) if pairs else places
    indices = numpy_helper.from_array(at.astype(np.int64), f"{name}.indices")
    return helper.make_sparse_tensor(values, indices, WEIGHT.shape)


def _model(sparse: onnx.SparseTensorProto, form: str = "initializer") -> onnx.ModelProto:
    """y = x times a sparse weight: an initializer, a Constant, or one inside of an If."""
    x, y = (helper.make_tensor_value_info(n, 1, ["n", s]) for n, s in (("x", 4), ("y", 2)))
    product = helper.make_node("Gemm", ["x", "w"], ["y"], name="fc", transB=1)
    nodes, stored = [product], []
    if form == "Constant":
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    if form == "branch":
        branches = {
            name: helper.make_graph([product], name, [], [y], sparse_initializer=[sparse])
            for name in ("then_branch", "else_branch")
        }
        nodes = [helper.make_node("If", ["true"], ["y"], name="choice", **branches)]
        stored = [numpy_helper.from_array(np.array(True), "true")]
    outside = [sparse] if form == "initializer" else []
    graph = helper.make_graph(nodes, "g", [x], [y], stored, sparse_initializer=outside)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("form", ["initializer", "Constant", "branch"])
@pytest.mark.parametrize("pairs", [False, True])
def test_a_sparse_weight(form: str, pairs: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    onnx.save(_model(_sparse(pairs), form), path)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(load_onnx(path)(torch.tensor(x)).detach().numpy(), x @ WEIGHT.T)
    whole = load(path)
    session = ort.InferenceSession(whole.SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x @ WEIGHT.T)
    if form == "initializer":
        weight = OnnxModel.of(path).graph.initializers["w"].array
        assert weight is not None
        np.testing.assert_array_equal(weight, WEIGHT)


def _beyond(sparse: onnx.SparseTensorProto) -> None:
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([1, 2, 8])))


def _before(sparse: onnx.SparseTensorProto) -> None:
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([-1, 2, 3])))


def _vast(sparse: onnx.SparseTensorProto) -> None:
    sparse.dims[:] = [2**20, 2**20]


@pytest.mark.parametrize("damage", [_beyond, _before, _vast])
def test_damaged_ones_are_refused(damage: object, tmp_path: Path) -> None:
    sparse = _sparse()
    damage(sparse)  # type: ignore[operator]  # one of the three above
    onnx.save(_model(sparse), tmp_path / "a.onnx")
    for read, error in ((load, FileError), (load_onnx, CaptureError)):
        with pytest.raises(error, match="not a readable ONNX file"):
            read(tmp_path / "a.onnx")
