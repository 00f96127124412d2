"""The profile "tflite-optimized" equals what LiteRT computes where XNNPACK leaves an operator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.tflite import litert
from qtool.backends.tflite.engine import lower
from qtool.backends.tflite.file import Model, Operator, Quantization, Tensor, to_bytes
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.backends.tflite.verification import compare_delegate_codes
from tests.needs import needs_litert


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
        input_names=("x",),
        output_names=("y",),
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
    remaining = litert.partitioning(path).remaining
    kinds = {op.name for op in file.model.operators if op.outputs[0] in remaining}
    assert "TRANSPOSE_CONV" in kinds, "XNNPACK leaves it"
    assert compare_delegate_codes(file, [[x.numpy()]]).exact
    others = dict.fromkeys(remaining, litert.reference_profile())
    wrong = lower(file.model, litert.DELEGATE_PROFILE, others=others)
    (codes,) = file.codes([x.numpy()], default=True)
    assert not np.array_equal(codes, file.engine_codes(wrong, [x.numpy()])[0])
