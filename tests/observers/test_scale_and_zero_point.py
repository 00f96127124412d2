"""Scale and zero point from a range."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qtool.core.errors import CalibrationError
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8, INT8_NARROW, INT32, UINT8, QType
from qtool.observers import MIN_SCALE, solve
from tests.observers.differential import ANY, ORDINARY, POWERS, QUICK

LARGEST = float(np.finfo(np.float32).max)
TYPES = st.sampled_from([UINT8, INT8, INT8_NARROW, INT32])
ENDS = st.one_of(ORDINARY, ANY, POWERS, st.floats(allow_nan=False, allow_infinity=False))


def solved(lo: float, hi: float, qtype: QType, symmetric: bool = False) -> QuantParams:
    low, high = (torch.tensor(v, dtype=torch.float64) for v in (lo, hi))
    return solve(low, high, qtype, symmetric, None)


def assert_valid(params: QuantParams) -> None:
    """Dtypes, a normal finite scale of at least 2**-60, a zero point in range, finite values."""
    qtype, scale = params.qtype, params.scale
    assert (scale.dtype, params.zero_point.dtype) == (torch.float32, torch.int64)
    assert scale.shape == params.zero_point.shape
    assert scale.min() >= MIN_SCALE
    assert scale.isfinite().all()
    assert (qtype.qmin <= params.zero_point).all()
    assert (params.zero_point <= qtype.qmax).all()
    for code in (qtype.qmin, qtype.qmax):
        assert params.dequantize(torch.full(scale.shape, code)).isfinite().all()


@QUICK
@given(ENDS, ENDS, TYPES, st.booleans())
def test_every_range_gives_valid_parameters(
    a: float, b: float, qtype: QType, symmetric: bool
) -> None:
    lo, hi = sorted((a, b))
    params = solved(lo, hi, qtype, symmetric)
    assert_valid(params)
    if lo >= 0 and not symmetric:
        assert params.zero_point == qtype.qmin
    if symmetric and qtype.signed:
        assert params.zero_point == 0
    assert params.dequantize(params.zero_point) == 0


@QUICK
@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.sampled_from([UINT8, INT8, INT8_NARROW]))
def test_the_end_codes_cover_the_range(a: float, b: float, qtype: QType) -> None:
    lo, hi = min(a, b, 0.0), max(a, b, 0.0)
    for symmetric in (False, True):
        params = solved(lo, hi, qtype, symmetric)
        for value in (lo, hi):
            back = params.dequantize(params.quantize(torch.tensor(value, dtype=torch.float32)))
            assert abs(back.item() - value) <= 0.5001 * params.scale.item()


CASES = {
    "relu6": (0, 6, UINT8, False, 6 / 255, 0),
    "image": (0, 1, UINT8, False, 1 / 255, 0),
    "even": (-1, 1, UINT8, False, 2 / 255, 128),
    "zero point half to even": (-0.5, 254.5, UINT8, False, 1, 0),
    "negative": (-2, -1, UINT8, False, 2 / 255, 255),
    "positive away from zero": (4, 5, UINT8, False, 5 / 255, 0),
    "int8": (0, 2.55, INT8, False, 0.01, -128),
    "symmetric int8": (-1, 0.5, INT8, True, 1 / 127, 0),
    "symmetric narrow": (-0.5, 1, INT8_NARROW, True, 1 / 127, 0),
    "symmetric uint8": (-1, 0.5, UINT8, True, 1 / 127, 128),
    "all zero": (0, 0, UINT8, False, 1, 0),
    "all zero symmetric": (0, 0, INT8, True, 1, 0),
    "a constant": (3, 3, UINT8, False, 3 / 255, 0),
    "under the floor": (0, 1e-30, UINT8, False, 2.0**-60, 0),
    "under the floor, negative": (-1e-300, 0, INT8, True, 2.0**-60, 0),
}


@pytest.mark.parametrize(
    ("lo", "hi", "qtype", "symmetric", "scale", "zero"), CASES.values(), ids=CASES.keys()
)
def test_named_ranges(
    lo: float, hi: float, qtype: QType, symmetric: bool, scale: float, zero: int
) -> None:
    params = solved(lo, hi, qtype, symmetric)
    assert params.scale == np.float32(scale)
    assert params.zero_point == zero
    assert params.axis is None


def test_relu6_uses_every_code() -> None:
    scale = solved(0, 6, UINT8).scale.numpy()
    assert scale <= np.float32(6 / 255) * 1.0019
    assert np.rint(np.float32(6) / scale) >= 255


@pytest.mark.parametrize("qtype", [UINT8, INT8, INT8_NARROW, INT32])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    ("lo", "hi"), [(-LARGEST, LARGEST), (0, LARGEST), (-LARGEST, 0), (-LARGEST, 1), (-1e300, 1e300)]
)
def test_ranges_wider_than_float32_stay_finite(
    lo: float, hi: float, symmetric: bool, qtype: QType
) -> None:
    params = solved(lo, hi, qtype, symmetric)
    assert_valid(params)
    ends = torch.tensor([lo, hi]).double().clamp(-LARGEST, LARGEST).float()
    back = params.dequantize(params.quantize(ends))
    assert ((back - ends).abs() <= LARGEST / 100).all()


def test_per_channel_is_each_channel_alone() -> None:
    lo = torch.tensor([-1, 0, -1e-40, -3e38], dtype=torch.float64)
    hi = torch.tensor([2, 0, 6, 3e38], dtype=torch.float64)
    for symmetric in (False, True):
        params = solve(lo, hi, INT8, symmetric, axis=0)
        assert params.axis == 0
        assert_valid(params)
        for c in range(4):
            alone = solve(lo[c], hi[c], INT8, symmetric, None)
            assert alone.scale == params.scale[c]
            assert alone.zero_point == params.zero_point[c]


@pytest.mark.parametrize(
    ("lo", "hi", "axis"),
    [
        pytest.param(torch.tensor(1.0), torch.tensor(0.0), None, id="order"),
        pytest.param(torch.tensor(0.0), torch.tensor(torch.inf), None, id="Inf"),
        pytest.param(torch.tensor(torch.nan), torch.tensor(1.0), None, id="NaN"),
        pytest.param(torch.zeros(3), torch.ones(3), None, id="rank for a tensor"),
        pytest.param(torch.tensor(0.0), torch.tensor(1.0), 0, id="rank for channels"),
        pytest.param(torch.zeros(3), torch.ones(2), 0, id="lengths"),
    ],
)
def test_impossible_ranges_are_refused(
    lo: torch.Tensor, hi: torch.Tensor, axis: int | None
) -> None:
    with pytest.raises(CalibrationError, match="range"):
        solve(lo, hi, UINT8, False, axis)
