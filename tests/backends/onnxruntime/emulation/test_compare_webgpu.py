"""Files on the WebGPU provider, where `qtool emulators install --webgpu` ran."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import qtool
from qtool.backends.onnxruntime.emulation import WEBGPU, jobs
from qtool.backends.onnxruntime.emulation.available import check_available
from qtool.backends.onnxruntime.emulation.cache_folder import webgpu_folder
from qtool.core.errors import EmulationError
from tests.backends.onnxruntime.emulation.networks import batches, by_onnxruntime


def _why() -> str:
    try:
        check_available([WEBGPU])
    except EmulationError as error:
        return str(error)
    return ""


installed = pytest.mark.skipif(bool(_why()), reason=_why() or "installed")
pytestmark = installed
HEADS, KV_HEADS, SIZE = 4, 2, 16


def attention(path: Path, tokens: int, past: int) -> list[np.ndarray]:
    """Write a GroupQueryAttention behind a product, and return its inputs."""
    node = helper.make_node(
        "GroupQueryAttention",
        ["scaled", "k", "v", "past_k", "past_v", "lengths", "total"],
        ["y", "new_k", "new_v"],
        name="attention",
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=KV_HEADS,
    )
    random = np.random.default_rng(0)
    sizes = {
        "q": (1, tokens, HEADS * SIZE),
        "k": (1, tokens, KV_HEADS * SIZE),
        "v": (1, tokens, KV_HEADS * SIZE),
        "past_k": (1, KV_HEADS, past, SIZE),
        "past_v": (1, KV_HEADS, past, SIZE),
    }
    arrays = {name: random.standard_normal(s).astype(np.float32) for name, s in sizes.items()}
    arrays["lengths"] = np.array([tokens + past - 1], np.int32)
    arrays["total"] = np.array([tokens + past], np.int32)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in arrays.items()
    ]
    outputs = [helper.make_tensor_value_info(n, 1, None) for n in ("y", "new_k", "new_v")]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["q", "q"], ["scaled"]), node], "g", inputs, outputs
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return list(arrays.values())


@pytest.mark.parametrize(("tokens", "past"), [(17, 0), (3, 9), (1, 9)])
def test_attention_over_several_tokens_is_right(tokens: int, past: int, tmp_path: Path) -> None:
    inputs = attention(tmp_path / "a.onnx", tokens, past)
    compared = qtool.verify_on_webgpu(tmp_path / "a.onnx", [inputs])
    assert compared.agrees
    assert min(o.sqnr_db or 200 for o in compared.outputs) >= 120
    assert (compared.placement.nodes, compared.placement.fallbacks) == (2, ())
    assert "agrees on WebGPU (limit 80 dB)" in str(compared)
    assert "not judged here: kernels with subgroups" in str(compared)


@pytest.fixture
def subgroups_of_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SwiftShader as it is: its subgroups have four invocations."""
    driver = {"library_path": str(webgpu_folder() / "lib" / jobs.SWIFTSHADER)}
    text = json.dumps({"file_format_version": "1.0.0", "ICD": {**driver, "api_version": "1.1.0"}})
    (tmp_path / "plain.json").write_text(text)
    monkeypatch.setattr(jobs, "DRIVER_FILE", str(tmp_path / "plain.json"))


@pytest.mark.usefixtures("subgroups_of_4")
def test_the_first_node_that_differs_is_named(tmp_path: Path) -> None:
    inputs = attention(tmp_path / "a.onnx", 17, 0)
    compared = qtool.verify_on_webgpu(tmp_path / "a.onnx", [inputs])
    assert not compared.agrees
    assert compared.first is not None
    assert (compared.first.node, compared.first.tensor) == ("attention", "y")
    assert compared.first.sqnr_db < 40
    assert compared.first.input_db is None
    assert "first     attention (GroupQueryAttention): " in str(compared)


def test_a_file_that_rounds_activations_falls_back(tmp_path: Path) -> None:
    file = by_onnxruntime(tmp_path / "a.onnx", external=True)
    compared = qtool.verify_on_webgpu(file, batches())
    assert compared.agrees
    assert compared.limit_db == 40
    assert compared.placement.fallbacks
    assert all("QuantizeLinear" in name for name in compared.placement.fallbacks)
    assert compared.placement.copies > 2
    assert compared.outputs[0].rows == compared.samples == 8
