"""A decoder of another tool, of operators of the runtime's own domain: kept, run, written back."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

import qtool
from qtool.frontends.onnx.onnx_file import load_onnx
from tests.frontends.onnx.decoder import call, contrib_decoder

OWN = (
    "GroupQueryAttention",
    "RotaryEmbedding",
    "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)
MODES = ("weight-only", "weight-only-int4", "dynamic")


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    onnx.save(contrib_decoder(), file)
    batch = {n: torch.from_numpy(a) for n, a in call(3, 6).items()}
    return file, batch, qtool.capture_model(load_onnx(file), batch)


def test_where_nothing_is_quantized_it_equals(captured: Any, tmp_path: Path) -> None:
    file, _, graph = captured
    mine = ort.InferenceSession(graph.export_float(tmp_path / "float.onnx"))
    theirs = ort.InferenceSession(file)
    for sizes in ((1, 6), (2, 9), (5, 0)):  # steps, and a prompt
        given = call(*sizes)
        for a, b in zip(theirs.run(None, given), mine.run(None, given), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", MODES)
def test_it_converts_and_runs(mode: str, captured: Any, tmp_path: Path) -> None:
    file, batch, graph = captured
    path = tmp_path / "made.onnx"
    assert qtool.quantize(graph, [batch], mode=mode, accuracy="fast").export(path).passed
    nodes = [n.op_type for n in onnx.load(path).graph.node]
    before = [n.op_type for n in onnx.load(file).graph.node]
    assert [nodes.count(op) for op in OWN] == [before.count(op) for op in OWN]
    given = call(3, 0)
    real, found = (ort.InferenceSession(f).run(None, given)[0] for f in (file, path))
    assert np.square(found - real).sum() < 0.1 * np.square(real).sum()
