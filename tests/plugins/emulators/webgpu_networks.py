"""The WebGPU provider in tests: whether it is installed, attention, and two kinds of adapters."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from qtool.core.errors import EmulationError
from qtool.plugins.emulators import jobs
from qtool.plugins.emulators.available import check_available, webgpu_folder
from qtool.plugins.emulators.cpus import WEBGPU


def _why() -> str:
    try:
        check_available([WEBGPU])
    except EmulationError as error:
        return str(error)
    return ""


needs_webgpu = pytest.mark.skipif(bool(_why()), reason=_why() or "installed")
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


def show_subgroups(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use SwiftShader as it is: its subgroups have four invocations."""
    driver = {"library_path": str(webgpu_folder() / "lib" / jobs.SWIFTSHADER)}
    text = json.dumps({"file_format_version": "1.0.0", "ICD": {**driver, "api_version": "1.1.0"}})
    (folder / "plain.json").write_text(text)
    monkeypatch.setattr(jobs, "DRIVER_FILE", str(folder / "plain.json"))
