"""How a file behaves elsewhere: by arithmetic, and by the codes of the other CPUs' profiles."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import qtool
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.portability import diverging_nodes, portability
from qtool.backends.profiles import PROFILES, profile
from qtool.verification.portability import OtherCpu, Portability

HERE, SATURATES = "onnxruntime-x64", "onnxruntime-avx2"
OTHERS = [n for n in PROFILES if n.startswith("onnxruntime-") and n != HERE]


class Net(nn.Module):
    """Neighbouring weights of one sign, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        return self.head(torch.relu(x + self.body(x)).mean((2, 3)))


def exported(folder: Path, target: str, net: nn.Module | None = None) -> Path:
    torch.manual_seed(0)
    model, x = (net or Net()).eval(), torch.rand(8, 4, 6, 6)
    with torch.no_grad():
        for layer in (m for m in model.modules() if isinstance(m, nn.Conv2d)):
            layer.weight[:, :2] = layer.weight.abs().amax()
    path = folder / f"{target}.onnx"
    qtool.quantize(model, [x], target=target, accuracy="fast").export(path, verify=False)
    return path


def samples() -> list[np.ndarray]:
    return [np.random.default_rng(0).random((16, 4, 6, 6), np.float32)]


def test_the_portable_file_differs_nowhere(tmp_path: Path) -> None:
    assert not any(diverging_nodes(exported(tmp_path, "onnxruntime"), HERE, OTHERS).values())


def test_layers_whose_pairs_can_saturate_are_named(tmp_path: Path) -> None:
    found = diverging_nodes(exported(tmp_path, "onnxruntime-x86-vnni"), HERE, OTHERS)
    assert {"stem", "body"} <= set(found[SATURATES])
    assert not {"stem", "body"} & {n for name in OTHERS[1:] for n in found[name]}


def test_nodes_are_the_same_from_both_sides(tmp_path: Path) -> None:
    file = exported(tmp_path, "onnxruntime-x86-vnni")
    there = diverging_nodes(file, HERE, [SATURATES])[SATURATES]
    assert set(diverging_nodes(file, SATURATES, [HERE])[HERE]) == set(there)


def test_dynamic_layers_count(tmp_path: Path) -> None:
    layer, x = nn.LSTM(6, 4, batch_first=True).eval(), torch.randn(2, 3, 6)
    with torch.no_grad():
        layer.weight_ih_l0[:, :2] = 1.0
    for target, count in (("onnxruntime", 0), ("onnxruntime-x86-vnni", 1)):
        model = qtool.quantize(layer, [x], mode="dynamic", target=target, recover=[])
        path = tmp_path / f"{target}.onnx"
        model.export(path, verify=False)
        assert len(diverging_nodes(path, HERE, [SATURATES])[SATURATES]) == count


@pytest.mark.skipif(machine_profile() != HERE, reason="codes of a CPU with VNNI")
def test_outputs_elsewhere_are_those_of_the_other_profile(tmp_path: Path) -> None:
    onnx_file, inputs = ExportedFile(exported(tmp_path, "onnxruntime-x86-vnni")), samples()
    result = portability(onnx_file, HERE, inputs, portable=False)
    (row,) = (r for r in result.cpus if r.profile == SATURATES)
    here = onnx_file.run(inputs)[0].astype(np.float64)
    there = onnx_file.program(SATURATES)(torch.from_numpy(inputs[0]))[0]
    params = onnx_file.program(SATURATES).params.get(onnx_file.program(SATURATES).outputs[0])
    there = (there if params is None else params.dequantize(there)).numpy()
    noise = np.square(here - there).sum()
    assert row.sqnr_db == pytest.approx(10 * np.log10(np.square(here).sum() / noise), abs=1e-6)
    assert row.changed == (here.argmax(1) != there.argmax(1)).mean()


def test_what_is_said() -> None:
    cpus = (
        OtherCpu(SATURATES, profile(SATURATES).cpus, ("a", "b"), 14.06, 0.145),
        OtherCpu("onnxruntime-neon", "64-bit ARM", ("c",)),
        OtherCpu("onnxruntime-wasm", "WebAssembly", ()),
    )
    assert str(Portability(cpus, 32, 3, portable=False)) == (
        "identical codes on WebAssembly; 3 float nodes may differ in the last bits\n"
        "on x86-64 without VNNI (AVX2): SQNR 14.1 dB against this CPU, 14.5 % of predictions "
        "change; use target='onnxruntime'\n"
        "on 64-bit ARM: identical outputs; codes of 1 operator may differ on other inputs"
    )
    same = Portability(tuple(OtherCpu(c.profile, c.cpu, ()) for c in cpus), 0, 0, portable=True)
    assert str(same) == f"identical codes on {profile(SATURATES).cpus}, 64-bit ARM, WebAssembly"


def test_a_conversion_says_it(tmp_path: Path) -> None:
    model = qtool.quantize(Net().eval(), [torch.rand(8, 4, 6, 6)], accuracy="fast")
    result = model.export(tmp_path / "m.onnx")
    assert result.portability is not None
    assert result.to_json()["portability"]["portable"] is True
    assert "identical codes" in result.details()


def test_what_operators_round_inside_is_not_known_elsewhere(tmp_path: Path) -> None:
    """A file of another tool with 4-bit products, whose kernels round inputs to int8."""
    random = np.random.default_rng(0)
    tensors = {"w": random.integers(0, 256, (64, 2, 16), np.uint8)}
    tensors["s"] = random.random((64, 2), np.float32) / 50
    sizes = {"K": 64, "N": 64, "bits": 4, "block_size": 32, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", *tensors], ["y"], domain="com.microsoft", **sizes)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 64]) for n in "xy"]
    stored = [numpy_helper.from_array(v, k) for k, v in tensors.items()]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    inputs = [random.normal(size=(8, 64)).astype(np.float32)]
    found = portability(ExportedFile(tmp_path / "m.onnx"), machine_profile(), inputs, True)
    assert found.rounding_nodes == 1
    assert "not known: 1 operator" in str(found)
    assert "identical codes" not in str(found)
