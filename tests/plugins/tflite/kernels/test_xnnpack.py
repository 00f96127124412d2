"""Optimized kernels of TFLite, and XNNPACK's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.profiles import profile
from qtool.core.errors import KernelError
from qtool.core.types import INT8, INT16
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.engine import lower
from qtool.plugins.tflite.file import Model, Operator, PortNames, Quantization, Tensor, to_bytes
from qtool.plugins.tflite.tflite_file import TfliteFile
from qtool.plugins.tflite.verification import compare_delegate_codes
from tests.backends.kernels.ort_session import params
from tests.needs import needs_litert
from tests.planning.targets.converted import converted
from tests.plugins.tflite.kernels.xnnpack_models import KINDS, model


@needs_litert
@pytest.mark.parametrize("count", [5, 8, 21, 1003])
def test_floats_become_int16(count: int, tmp_path: Path) -> None:
    """Blocks of 8 elements round halves to even, the rest away from zero."""
    scale, generator = np.float32(0.0037), np.random.default_rng(1)
    halves = generator.integers(-32000, 32000, (1, count)) + 0.5
    x = (halves * scale).astype(np.float32)
    params = Quantization(np.array([scale]), np.array([0]), 0)
    tensors = (Tensor("x", "float32", x.shape), Tensor("y", "int16", x.shape, quantization=params))
    model = Model(
        *(tensors, (Operator("QUANTIZE", (0,), (1,), {}, 2),), (0,), (1,)),
        names=PortNames(("x",), ("y",)),
    )
    path = tmp_path / "model.tflite"
    path.write_bytes(to_bytes(model))
    (expected,) = litert.run_default(path, [x])
    (actual,) = lower(model, litert.OPTIMIZED_PROFILE)(torch.from_numpy(x))
    assert np.array_equal(expected, actual.numpy())
    (reference,) = lower(model, litert.reference_profile())(torch.from_numpy(x))
    assert count == 5 or not reference.equal(actual)


@needs_litert
def test_transposed_convolutions_of_a_dynamic_batch(tmp_path: Path) -> None:
    """Blocks of 8 channels round the second time with ties up, the rest away from zero."""
    torch.manual_seed(3)
    network = nn.Sequential(nn.ConvTranspose2d(4, 20, 3, stride=2), nn.Conv2d(20, 4, 1)).eval()
    path, data = tmp_path / "model.tflite", torch.randn(64, 4, 16, 16)
    model = qtool.quantize(network, [data], target="tflite", accuracy="fast")
    model.export(path, verify=False, batch="dynamic")
    file, x = TfliteFile(path), torch.randn(32, 4, 16, 16)
    remaining = litert.left_by_delegate(path)
    kinds = {op.name for op in file.model.operators if op.outputs[0] in remaining}
    assert "TRANSPOSE_CONV" in kinds, "XNNPACK leaves it"
    assert compare_delegate_codes(file, [[x.numpy()]]).exact
    others = dict.fromkeys(remaining, litert.reference_profile())
    wrong = lower(file.model, litert.DELEGATE_PROFILE, others=others)
    (codes,) = file.codes([x.numpy()], default=True)
    assert not np.array_equal(codes, file.engine_codes(wrong, [x.numpy()])[0])


REFERENCE = profile("tflite-2").binders
OWN = [key for key, bind in profile("xnnpack").binders.items() if bind is not REFERENCE[key]]
ALIKE = ("ADD", "FULLY_CONNECTED", "LOGISTIC", "SUB", "TANH")
"""Kinds in which few codes differ from those of the reference kernels, or none."""


@needs_litert
@pytest.mark.parametrize("kind", KINDS)
def test_random_models_of_one_operator(kind: str, tmp_path: Path) -> None:
    path, generator = tmp_path / "model.tflite", np.random.default_rng(1)
    changed = 0
    for _ in range(4):
        drawn, inputs = model(generator, kind)
        path.write_bytes(to_bytes(drawn))
        assert not litert.left_by_delegate(path), "XNNPACK takes it"
        (expected,) = litert.run_default(path, inputs)
        tensors = [torch.from_numpy(a) for a in inputs]
        (actual,) = lower(drawn, litert.DELEGATE_PROFILE)(*tensors)
        assert np.array_equal(expected, actual.numpy())
        (reference,) = lower(drawn, litert.reference_profile())(*tensors)
        changed += int((reference != actual).sum())
    assert changed or kind in ALIKE, "the kernels are others"


@needs_litert
@pytest.mark.parametrize("name", ["digits", "residual_concat"])
def test_whole_networks(name: str, tmp_path: Path) -> None:
    converted(name, "tflite").export(tmp_path / "model.tflite", verify=False)
    result = qtool.verify(tmp_path / "model.tflite", samples=8, batch_size=4)
    assert result.exact
    assert result.delegate.exact
    assert "XNNPACK" in str(result)


@pytest.mark.parametrize("key", ["add", "mul", "sub"])
def test_other_types_are_refused(key: str) -> None:
    with pytest.raises(KernelError, match="take int8 here"):
        profile("xnnpack").bind(key, params(INT8, 1), params(INT16, 1), params(INT8, 1))


def test_kernels_of_its_own() -> None:
    assert set(OWN) >= {"add", "conv", "linear", "mean", "mul", "quantize", "requantize"}
