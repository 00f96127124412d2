"""Activations of 16 bits: every code equals that of LiteRT and of TensorFlow Lite Micro."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.core.errors import ExportError
from qtool.planning.plan import Execution
from qtool.plugins.tflite import deployment
from qtool.plugins.tflite.file import load
from tests.needs import needs_litert, needs_tflm
from tests.passes.differential import Function

WIDE = {"rules": [{"select": "*", "activations": "int16"}]}


def _convolution(inputs: int = 8, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, 8, 3, padding=1, **options)


def _layers(x: torch.Tensor, *parts: Callable[..., torch.Tensor]) -> torch.Tensor:
    first, depthwise, up, last = parts
    x = F.relu(first(x))
    return last(up(F.pad(F.relu6(depthwise(x)) + x, (1, 2, 1, 0))))


def _functions(x: torch.Tensor, *parts: Callable[..., torch.Tensor]) -> torch.Tensor:
    first, second, last = parts
    x = F.silu(first(x)) * torch.sigmoid(first(x))
    x = torch.cat([F.leaky_relu(second(x)), torch.tanh(x)], 1)
    return last(F.adaptive_avg_pool2d(F.max_pool2d(F.avg_pool2d(x, 3, 1, 1), 2), 1).flatten(1))


def _attention(x: torch.Tensor, *parts: Callable[..., torch.Tensor]) -> torch.Tensor:
    query, key, value, last = (part(x) for part in parts)
    weights = torch.softmax(query @ key.transpose(-1, -2), -1)
    return parts[3](weights @ value + last)


NETWORKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "layers": (
        Function(
            _layers,
            *(_convolution(), _convolution(groups=8), nn.ConvTranspose2d(8, 8, 3, stride=2)),
            _convolution(bias=False),
        ),
        (8, 8, 8),
    ),
    "functions": (
        Function(_functions, _convolution(), _convolution(), nn.Linear(16, 4)),
        (8, 8, 8),
    ),
    "attention": (Function(_attention, *(nn.Linear(16, 16) for _ in range(4))), (6, 16)),
}


def _quantized(name: str, recipe: Any = WIDE, target: str = "tflite") -> qtool.QuantizedModel:
    torch.manual_seed(0)
    network, sizes = NETWORKS[name]
    data = torch.randn(32, *sizes, generator=torch.Generator().manual_seed(1))
    return qtool.quantize(network.eval(), [data], target=target, recipe=recipe, accuracy="fast")


@needs_litert
@pytest.mark.parametrize("name", NETWORKS)
def test_all_operators_compute_16_bits(name: str, tmp_path: Path) -> None:
    model, path = _quantized(name), tmp_path / "model.tflite"
    result = model.export(path, timing=0)
    assert result.exactness.exact
    assert result.exactness.float_steps == 0
    assert not [d.node for d in model.plan.nodes if d.execution is Execution.FLOAT]
    file = load(path)
    codes = {t.type for t in file.tensors if t.quantization is not None and t.data is None}
    assert codes == {"int16"}
    biases = {t.type for t in file.tensors if t.data is not None and t.name.endswith(".bias")}
    assert biases <= {"int64"}


@needs_tflm
@needs_litert
@pytest.mark.parametrize("name", NETWORKS)
def test_microcontrollers_compute_the_same_codes(name: str, tmp_path: Path) -> None:
    result = _quantized(name, target=deployment.TARGET).export(tmp_path / "m.tflite", timing=0)
    assert any("values identical" in r for r in result.notes), result.notes
    assert result.exactness.exact


@needs_litert
@pytest.mark.parametrize("name", NETWORKS)
def test_one_operator_of_16_bits_is_requantized_around(name: str, tmp_path: Path) -> None:
    """QUANTIZE between the types on both sides; a product of two activations has one type."""
    middle = {"layers": "parts.1", "functions": "parts.1", "attention": "matmul*"}[name]
    recipe = {"rules": [{"select": middle, "activations": "int16"}]}
    model, path = _quantized(name, recipe), tmp_path / "model.tflite"
    result = model.export(path, timing=0)
    assert result.exactness.exact
    file = load(path)
    types = {
        (file.tensors[op.inputs[0]].type, file.tensors[op.outputs[0]].type)
        for op in file.operators
        if op.name == "QUANTIZE"
    }
    assert {("int8", "int16"), ("int16", "int8")} <= types


@needs_litert
def test_error_is_that_of_the_weights(tmp_path: Path) -> None:
    """The outputs of int8 activations have 20 dB more error."""
    wide, usual = _quantized("layers"), _quantized("layers", None)
    x = torch.randn(16, 8, 8, 8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        real = NETWORKS["layers"][0](x)
        errors = [float((model(x) - real).square().mean()) for model in (wide, usual)]
    assert errors[0] < errors[1] / 2


def test_operators_without_16_bits_stay_in_float(tmp_path: Path) -> None:
    network = Function(lambda x, a, b: b(F.hardswish(a(x))), _convolution(), _convolution())
    data = torch.randn(32, 8, 8, 8)
    model = qtool.quantize(network.eval(), [data], target="tflite", recipe=WIDE, accuracy="fast")
    decision = model.plan.decision("hardswish")
    assert decision.reason.startswith("tflite has no kernel for int16 activations")
    small = qtool.quantize(
        network.eval(), [data], target=deployment.TARGET, recipe=WIDE, accuracy="fast"
    )
    with pytest.raises(ExportError, match="HARD_SWISH"):
        small.export(tmp_path / "model.tflite", verify=False)


@needs_litert
def test_a_pixel_shuffle_of_16_bits_runs_in_float(tmp_path: Path) -> None:
    """DEPTH_TO_SPACE takes 8 bits; floats hold codes of 16 bits exactly."""
    shuffle = lambda x, a, b: b(F.pixel_shuffle(a(x), 2))  # noqa: E731
    network = Function(shuffle, _convolution(), nn.Conv2d(2, 4, 1))
    data, path = torch.randn(32, 8, 8, 8), tmp_path / "model.tflite"
    for recipe, kinds in ((None, {"int8"}), (WIDE, {"float32"})):
        model = qtool.quantize(
            network.eval(), [data], target="tflite", recipe=recipe, accuracy="fast"
        )
        result = model.export(path, timing=0)
        assert result.exactness.exact
        file = load(path)
        moved = [op for op in file.operators if op.name == "DEPTH_TO_SPACE"]
        assert {file.tensors[op.inputs[0]].type for op in moved} == kinds
