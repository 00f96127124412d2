"""Linear layers that quantize their input in each run, row by row, next to float operators."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.core.data import to_batch
from qtool.core.errors import PlanError
from qtool.evaluation.restored_model import restore
from qtool.frontends.captured_model import capture_model
from qtool.plugins.tflite import deployment, litert
from qtool.plugins.tflite.engine import lower
from qtool.plugins.tflite.file import (
    Model,
    Operator,
    PortNames,
    Quantization,
    Tensor,
    load,
    to_bytes,
)
from qtool.plugins.tflite.tflite_file import TfliteFile
from qtool.plugins.tflite.verification import compare_litert_codes
from tests.needs import needs_litert
from tests.passes.differential import Function


def network() -> nn.Module:
    torch.manual_seed(0)
    first, last, norm = nn.Linear(16, 32), nn.Linear(32, 8, bias=False), nn.LayerNorm(32)
    return Function(lambda x, a, b, n: b(n(F.gelu(a(x)))), first, last, norm).eval()


def tokens(seed: int = 1) -> torch.Tensor:
    return torch.randn(32, 6, 16, generator=torch.Generator().manual_seed(seed))


def quantized(target: str = "tflite") -> qtool.QuantizedModel:
    return qtool.quantize(network(), [tokens()], target=target, mode="dynamic", accuracy="fast")


SIZES = [(3, 16, 8), (5, 13, 7), (256, 384, 96), (2, 1, 1)]
"""Rows, inputs and outputs."""


@needs_litert
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_kernel_equals_litert(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    rows, inputs, outputs = sizes
    generator = np.random.default_rng(inputs)
    weight = generator.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    scale = generator.uniform(1e-4, 1e-2, outputs).astype(np.float32)
    bias, x = (generator.normal(size=s).astype(np.float32) for s in (outputs, (rows, inputs)))
    x[0], x[-1] = 0, np.abs(x[-1])
    params = Quantization(scale, np.zeros(outputs, np.int64), 0)
    tensors = (
        Tensor("x", "float32", x.shape),
        Tensor("w", "int8", weight.shape, data=weight, quantization=params),
        Tensor("b", "float32", bias.shape, data=bias),
        Tensor("y", "float32", (rows, outputs)),
    )
    layer = Operator("FULLY_CONNECTED", (0, 1, 2), (3,), {"asymmetric_quantize_inputs": True}, 12)
    model = Model(tensors, (layer,), (0,), (3,), names=PortNames(("x",), ("y",)))
    path = tmp_path / "model.tflite"
    path.write_bytes(to_bytes(model))
    (expected,) = litert.run_reference(path, [x])
    (actual,) = lower(model, litert.reference_profile())(torch.from_numpy(x))
    assert np.array_equal(expected, actual.numpy())


@needs_litert
def test_a_file_has_int8_weights_and_float_results(tmp_path: Path) -> None:
    model, path = quantized(), tmp_path / "model.tflite"
    result = model.export(path, timing=0)
    assert result.passed
    assert result.exactness.exact
    file = load(path)
    layers = [op for op in file.operators if op.name == "FULLY_CONNECTED"]
    for op in layers:
        types = [file.tensors[i].type for i in (*op.inputs[:2], op.outputs[0])]
        assert types == ["float32", "int8", "float32"]
    assert len(layers) == 2
    assert qtool.inspect(path).coverage.share == 1.0
    x = tokens(2)
    (written,) = TfliteFile(path).run([x.numpy()])
    with torch.no_grad():
        real, planned = network()(x).numpy(), model(x).numpy()
    assert np.square(written - planned).mean() < np.square(written - real).mean() / 4


@needs_litert
def test_another_scale_of_a_weight_is_found(tmp_path: Path) -> None:
    """The engine computes a file whose bytes have changed since it was read."""
    path = tmp_path / "model.tflite"
    quantized().export(path, verify=False)
    file, batch = TfliteFile(path), [tokens()[:4].numpy()]
    assert compare_litert_codes(file, [batch]).exact
    weight = next(t for t in file.model.tensors if t.type == "int8" and t.data is not None)
    scale = weight.quantization.scale.tobytes()
    wrong = (weight.quantization.scale * np.float32(1.1)).tobytes()
    path.write_bytes(path.read_bytes().replace(scale, wrong))
    assert not compare_litert_codes(file, [batch]).passed


def test_the_model_is_restored_from_its_file(tmp_path: Path) -> None:
    model, path = quantized(), tmp_path / "model.tflite"
    model.export(path, verify=False)
    captured = capture_model(network(), tokens())
    again = restore(path, captured, to_batch(tokens()))
    x = tokens(2)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))


def test_microcontrollers_have_no_such_kernel() -> None:
    with pytest.raises(PlanError, match=r"tflite-micro has no kernel for dynamic"):
        quantized(deployment.TARGET)
