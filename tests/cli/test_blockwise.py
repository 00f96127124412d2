"""qtool blockwise: a file with its weights beside it, and a recipe."""

from __future__ import annotations

import json

import onnx
import onnxruntime as ort

from tests.cli.conftest import Cli
from tests.cli.float_onnx import write_float_onnx

HEAD_FLOAT = '[[rules]]\nselect = "y"\nas = "float"\n'


def test_a_recipe_is_followed_and_the_result_told(cli: Cli) -> None:
    x = write_float_onnx(cli.folder)
    (cli.folder / "r.toml").write_text(HEAD_FLOAT)
    given = ("blockwise", "float.onnx", "--data", "x.npy", "--mode", "dynamic", "-o", "y.onnx")
    printed = json.loads(cli(*given, "--recipe", "r.toml", "--json").stdout)
    assert printed["notes"] == []
    assert printed["file"].endswith("y.onnx")
    kinds = [n.op_type for n in onnx.load(cli.folder / "y.onnx").graph.node]
    assert kinds.count("MatMulInteger") == kinds.count("Gemm") == 1
    (y,) = ort.InferenceSession(cli.folder / "y.onnx").run(None, {"x": x})
    assert y.shape == (8, 8)
    (cli.folder / "r.toml").write_text(HEAD_FLOAT.replace('"y"', '"z"'))
    assert "selects no node" in cli.refuses(*given, "--recipe", "r.toml")
