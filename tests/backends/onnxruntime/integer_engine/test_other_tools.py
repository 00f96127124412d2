"""Files of ONNX Runtime's own quantizer: every code as the runtime computes it, or a refusal."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.backends.onnx.export import float_onnx
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.core.errors import KernelError
from tests.backends.onnxruntime.kernels.oracle import PROFILE
from tests.passes.differential import Function

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the quantizer, in onnx
IMAGE, TOKENS = (4, 3, 12, 12), (4, 6, 16)


def _branches(x: torch.Tensor, a: nn.Module, b: nn.Module, c: nn.Module, last: nn.Module) -> Any:
    y = F.avg_pool2d(F.relu(a(x)), 2)
    z = F.leaky_relu(b(y) + y, 0.1)
    z = F.max_pool2d(torch.cat([z, c(z).sigmoid()], 1), 2)[:, :8]
    return last(F.adaptive_avg_pool2d(z, 1).flatten(1))


def _attention(x: torch.Tensor, q: nn.Module, k: nn.Module, v: nn.Module, o: nn.Module) -> Any:
    weights = F.softmax(q(x) @ k(x).transpose(1, 2) / 4, -1)
    return o(weights @ v(x)) + x


def _products(x: torch.Tensor, a: nn.Module, b: nn.Module) -> Any:
    y = a(x)
    means = b(x).mean((2, 3), keepdim=True)
    return F.avg_pool2d(y, 3, 2, 1), F.hardswish(y) * means, torch.tanh(y), y.clamp(0, 2)


def conv(inputs: int, outputs: int, kernel: int = 3) -> nn.Module:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "branches": (
        lambda: Function(_branches, conv(3, 8), conv(8, 8), conv(8, 8, 1), nn.Linear(8, 6)),
        IMAGE,
    ),
    "softmax": (lambda: nn.Sequential(conv(3, 8), nn.Softmax(1), conv(8, 8)), IMAGE),
    "attention": (lambda: Function(_attention, *(nn.Linear(16, 16) for _ in range(4))), TOKENS),
    "products": (lambda: Function(_products, conv(3, 8), conv(3, 8)), IMAGE),
    "classes": (
        lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), nn.Softmax(-1)),
        (8, 16),
    ),
}
S8, U8 = QuantType.QInt8, QuantType.QUInt8
SETTINGS: dict[str, dict[str, Any]] = {
    "uint8": {"activation_type": U8},
    "int8": {"activation_type": S8},
    "int8 per channel": {"activation_type": S8, "per_channel": True},
    "uint8 weights": {"activation_type": U8, "weight_type": U8},
    "reduced": {"activation_type": U8, "per_channel": True, "reduce_range": True},
    "symmetric": {"activation_type": S8, "extra_options": {"ActivationSymmetric": True}},
    "pairs at weights": {"extra_options": {"AddQDQPairToWeight": True}},
    "pairs at channels": {"per_channel": True, "extra_options": {"AddQDQPairToWeight": True}},
    "a pair for each reader": {"activation_type": U8, "extra_options": {"DedicatedQDQPair": True}},
    "int8 pairs for each reader": {"extra_options": {"DedicatedQDQPair": True}},
    "float biases": {"activation_type": U8, "extra_options": {"QuantizeBias": False}},
}


class Reader(CalibrationDataReader):
    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        generator = np.random.default_rng(0)
        feeds = [{name: generator.normal(size=shape).astype(np.float32)} for _ in range(3)]
        self.feeds = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


@cache
def float_file(name: str) -> bytes:
    """The float network as ONNX, exported once."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    captured = qtool.capture_model(make().eval(), torch.randn(shape))
    return float_onnx(captured.graph).SerializeToString()


def quantized(name: str, folder: Path, **options: Any) -> Path:
    (folder / "float.onnx").write_bytes(float_file(name))
    (given,) = onnx.load(folder / "float.onnx").graph.input
    reader = Reader(given.name, NETWORKS[name][1])
    quantize_static(folder / "float.onnx", folder / "other.onnx", reader, **options)
    return folder / "other.onnx"


def data(name: str) -> list[list[np.ndarray]]:
    generator = np.random.default_rng(5)
    shape = NETWORKS[name][1]
    return [[(s * generator.normal(size=shape)).astype(np.float32)] for s in (1, 3)]


USUAL = ("uint8", "int8 per channel")
CELLS = [  # each network, and each setting
    (n, s) for n in NETWORKS for s in SETTINGS if n == "branches" or s in USUAL
]


@pytest.mark.parametrize(("name", "setting"), CELLS)
def test_files_in_qdq_form_are_exact(name: str, setting: str, tmp_path: Path) -> None:
    found = compare_codes(quantized(name, tmp_path, **SETTINGS[setting]), data(name))
    # AVX2 lays float convolutions of 8 channels out in blocks, which round otherwise than alone
    assert found.exact or (PROFILE != "onnxruntime-x64" and found.passed), str(found)


@pytest.mark.parametrize("activations", [S8, U8])
@pytest.mark.parametrize("name", NETWORKS)
def test_files_in_operator_form_are_refused(
    name: str, activations: QuantType, tmp_path: Path
) -> None:
    options = {"quant_format": QuantFormat.QOperator, "activation_type": activations}
    file = quantized(name, tmp_path, **options)
    with pytest.raises(KernelError, match=r"operator of the QOperator format.*QDQ format"):
        compare_codes(file, data(name))


KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "AveragePool": (1, {"kernel_shape": [2, 2]}),
    "Add": (2, {}),
    "Mul": (2, {}),
    "Softmax": (1, {"axis": 1}),
    "Sigmoid": (1, {}),
    "LeakyRelu": (1, {"alpha": 0.2}),
    "Concat": (2, {"axis": 1}),
    "GlobalAveragePool": (1, {}),
    "MatMul": (2, {}),
}


def one_operator(kind: str, dtype: Any, generator: np.random.Generator) -> Any:
    count, attributes = KINDS[kind]
    low = -128 if dtype is np.int8 else 0
    arrays, nodes = {}, []

    def parameters(name: str) -> list[str]:
        arrays[f"{name}s"] = np.float32(generator.uniform(0.005, 0.1))
        arrays[f"{name}z"] = dtype(low + generator.integers(256))
        return [f"{name}s", f"{name}z"]

    for i in range(count):
        given = parameters(f"p{i}")
        nodes.append(helper.make_node("QuantizeLinear", [f"x{i}", *given], [f"q{i}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{i}", *given], [f"d{i}"]))
    reads = [f"d{i}" for i in range(count)]
    nodes.append(helper.make_node(kind, reads, ["y"], name="op", **attributes))
    out = parameters("o")
    nodes.append(helper.make_node("QuantizeLinear", ["y", *out], ["q"]))
    nodes.append(helper.make_node("DequantizeLinear", ["q", *out], ["out"]))
    inputs = [helper.make_tensor_value_info(f"x{i}", 1, (2, 4, 6, 6)) for i in range(count)]
    result = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", inputs, [result], stored)
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("kind", KINDS)
def test_single_operators_are_exact(kind: str, dtype: Any, tmp_path: Path) -> None:
    """int8 codes become uint8 in the runtime: its kernels add the zero point before they round."""
    generator = np.random.default_rng(len(kind))
    for _ in range(12):
        model = one_operator(kind, dtype, generator)
        (tmp_path / "one.onnx").write_bytes(model.SerializeToString())
        assert lower(model).float_nodes == 0
        shape = (KINDS[kind][0], 2, 4, 6, 6)
        inputs = list(generator.uniform(-6, 6, shape).astype(np.float32))
        found = compare_codes(tmp_path / "one.onnx", [inputs])
        assert found.exact, str(found)
