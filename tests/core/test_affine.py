"""Codes of arrays are those of tensors, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtool.core.affine import Affine
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8, INT8_NARROW, INT16, UINT8, UINT16, QType


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("qtype", [UINT8, INT8, INT8_NARROW, INT16, UINT16], ids=str)
def test_codes_and_values_are_those_of_tensors(qtype: QType, axis: int | None) -> None:
    draw = np.random.default_rng(0)
    shape = (4, 5, 6)
    count = () if axis is None else (shape[axis],)
    scale = draw.uniform(1e-3, 0.3, count).astype(np.float32)
    zero = draw.integers(qtype.qmin, qtype.qmax + 1, count).astype(np.int64)
    affine = Affine(qtype, np.asarray(scale), np.asarray(zero), axis)
    params = QuantParams.of(affine)
    spans = params.along(params.scale, torch.Size(shape)).numpy() * qtype.levels
    x = (draw.uniform(-1.1, 1.1, shape) * spans).astype(np.float32)
    x.flat[0] = 2.5 * float(np.ravel(scale)[0])  # a half
    codes = affine.quantize(x)
    assert codes.dtype == qtype.numpy_dtype
    assert np.array_equal(codes, params.quantize(torch.from_numpy(x)).numpy())
    values = affine.dequantize(codes)
    assert values.dtype == np.float32
    assert np.array_equal(values, params.dequantize(torch.from_numpy(codes)).numpy())
