"""qtool blockwise: a file with its weights beside it, and a recipe."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from tests.cli.conftest import Cli

GRAPH = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[batch, 64] x) => (float[batch, 8] y) { h = MatMul (x, up) y = MatMul (h, down) }"""
HEAD_FLOAT = '[[rules]]\nselect = "y"\nas = "float"\n'


def test_a_recipe_is_followed_and_the_result_told(cli: Cli) -> None:
    random = np.random.default_rng(0)
    proto = onnx.parser.parse_model(GRAPH)
    for name, sizes in (("up", (64, 96)), ("down", (96, 8))):
        array = random.normal(size=sizes).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    apart = {"location": "weights.data", "size_threshold": 0}
    onnx.save(proto, cli.folder / "float.onnx", save_as_external_data=True, **apart)
    x = random.normal(size=(8, 64)).astype(np.float32)
    np.save(cli.folder / "x.npy", x)
    (cli.folder / "r.toml").write_text(HEAD_FLOAT)
    given = ("blockwise", "float.onnx", "--data", "x.npy", "--mode", "dynamic", "-o", "y.onnx")
    printed = json.loads(cli(*given, "--recipe", "r.toml", "--json").stdout)
    assert printed["notes"] == []
    assert printed["files"][0].endswith("y.onnx")
    kinds = [n.op_type for n in onnx.load(cli.folder / "y.onnx").graph.node]
    assert kinds.count("MatMulInteger") == kinds.count("Gemm") == 1
    (y,) = ort.InferenceSession(cli.folder / "y.onnx").run(None, {"x": x})
    assert y.shape == (8, 8)
    (cli.folder / "r.toml").write_text(HEAD_FLOAT.replace('"y"', '"z"'))
    assert "selects no node" in cli.refuses(*given, "--recipe", "r.toml")
