"""OpenVINO on a CPU without VNNI, by emulation: which weights meet in a 16-bit sum, and that files
of its target saturate none."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.backends.onnxruntime.cpu import DEFAULT_PROFILE, machine_profile
from qtool.core.weight_pairs import channel_pairs, saturating_pairs
from qtool.planning.targets import TARGETS
from tests.planning.targets.converted import network, samples, written

QEMU = shutil.which("qemu-x86_64")
pytest.importorskip("openvino", reason="OpenVINO is not installed: install the package openvino")
pytestmark = pytest.mark.skipif(
    QEMU is None, reason="qemu-x86_64 is not installed: CPUs without VNNI are not emulated"
)

SCRIPT = """
import sys
import numpy as np
import openvino as ov

core = ov.Core()
settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
for file in sys.argv[2:]:
    model = core.compile_model(core.read_model(file), "CPU", settings)
    np.save(f"{file}.{sys.argv[1]}.npy", model([np.load(f"{file}.npy")])[0])
"""
FREE = "openvino-without-limit"
LARGEST = 127
SATURATED = 2**15 - 1


def run(files: Mapping[Path, np.ndarray], cpu: str | None) -> list[np.ndarray]:
    """Outputs of files in OpenVINO, on this machine or on an emulated one."""
    for file, inputs in files.items():
        np.save(f"{file}.npy", inputs)
    emulator = [] if cpu is None else [str(QEMU), "-cpu", cpu]
    command = [*emulator, sys.executable, "-c", SCRIPT, cpu or "native", *map(str, files)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return [np.load(f"{file}.{cpu or 'native'}.npy") for file in files]


def pairs_model(shape: tuple[int, ...], groups: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """A layer with an output channel for each pair of weights, both at the largest code; and all
    pairs [pairs, 2], as places in the flattened channel."""
    count = int(np.prod(shape))
    pairs = np.stack(np.triu_indices(count, 1), 1)
    outputs = -(-len(pairs) // groups) * groups
    codes = np.zeros((outputs, count), np.int8)
    np.put_along_axis(codes[: len(pairs)], pairs, LARGEST, 1)
    arrays = {
        "s": np.float32(1),
        "z": np.uint8(0),
        "w": codes.reshape(outputs, *shape),
        "ws": np.ones(outputs, np.float32),
        "wz": np.zeros(outputs, np.int8),
    }
    layer = (
        helper.make_node("Conv", ["xd", "wd"], ["y"], group=groups)
        if len(shape) > 1
        else helper.make_node("Gemm", ["xd", "wd"], ["y"], transB=1)
    )
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        layer,
    ]
    sizes = ["n", shape[0] * groups, *(k + 2 for k in shape[1:])]
    result = ["n", outputs, *(3 for _ in shape[1:])]
    graph = helper.make_graph(
        nodes,
        "pairs",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), pairs


LAYERS = {  # inputs of a group and kernel, groups
    "product": ((20,), 1),
    "odd_product": ((7,), 1),
    "pointwise": ((20, 1, 1), 1),
    "conv": ((8, 3, 3), 1),
    "three_channels": ((3, 3, 3), 1),
    "grouped": ((4, 3, 3), 2),
    "odd_grouped": ((3, 3, 3), 2),
    "one_input_channel": ((1, 3, 3), 2),
    "clip": ((6, 3), 1),
    "odd_volume": ((3, 2, 2, 2), 1),
    "odd_grouped_volume": ((3, 2, 2, 2), 2),
    "depthwise": ((1, 3, 3), 36),
}


@pytest.mark.matrix
def test_the_pairs_that_saturate_are_those_that_are_known(tmp_path: Path) -> None:
    files, places = {}, {}
    for name, (shape, groups) in LAYERS.items():
        model, places[name] = pairs_model(shape, groups)
        onnx.save(model, tmp_path / name)
        sizes = (shape[0] * groups, *(k + 2 for k in shape[1:]))
        files[tmp_path / name] = np.full((2, *sizes), 255, np.float32)
    for name, found in zip(LAYERS, run(files, "Haswell"), strict=True):
        shape, groups = LAYERS[name]
        sums = found[0].reshape(found.shape[1], -1)[: len(places[name]), 0]
        assert set(sums) <= {float(SATURATED), 2.0 * 255 * LARGEST}
        wrong = places[name][sums == SATURATED]
        whole = (found.shape[1], *shape)
        assert _as_set(wrong) == _as_set(channel_pairs(whole, groups).numpy())
        assert _as_set(wrong) <= _as_set(saturating_pairs(whole, groups).numpy())


def _as_set(pairs: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(sorted(map(int, pair))) for pair in pairs}


@pytest.mark.matrix
def test_files_give_the_same_outputs_with_and_without_vnni(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, files = ("residual_concat", "depthwise"), {}
    free = replace(TARGETS["openvino"], name=FREE, saturation_limit=None)
    monkeypatch.setitem(TARGETS, FREE, free)
    for name in names:
        data = samples(name).numpy()
        onnx.save(written(name, "openvino"), tmp_path / name)
        other = qtool.quantize(
            network(name), [torch.from_numpy(data)], target=FREE, accuracy="fast"
        )
        onnx.save(other.to_onnx(), tmp_path / f"free_{name}")
        files |= {tmp_path / name: data, tmp_path / f"free_{name}": data}
    pairs = zip(files, run(files, None), run(files, "Haswell"), strict=True)
    same = {file.name: np.array_equal(a, b) for file, a, b in pairs}
    assert same["residual_concat"]
    assert same["depthwise"]
    if machine_profile() == DEFAULT_PROFILE:  # this machine has VNNI: the emulator can tell
        assert not same["free_residual_concat"]
