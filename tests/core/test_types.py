"""x"""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool.core.affine import Affine
from qtool.core.quant_params import (
    QuantParams,
    affine_codes,
    storage_qtype,
    torch_dtype,
    unbounded_codes,
)
from qtool.core.types import (
    INT4,
    INT8,
    INT8_NARROW,
    INT16,
    INT32,
    UINT8,
    UINT16,
    ObserverSpec,
    QType,
)

QUICK = settings(deadline=None, derandomize=True, database=None, max_examples=100)


def params(qtype: QType, scale: float, zero: int) -> QuantParams:
    return QuantParams(qtype, torch.tensor(scale), torch.tensor(zero))


@pytest.mark.parametrize(
    ("qtype", "low", "high", "levels", "signed", "stored"),
    [
        (UINT8, 0, 255, 255, False, torch.uint8),
        (INT8, -128, 127, 255, True, torch.int8),
        (INT8_NARROW, -127, 127, 254, True, torch.int8),
        (INT32, -(2**31), 2**31 - 1, 2**32 - 1, True, torch.int32),
        (INT4, -8, 7, 15, True, torch.int8),
        (INT16, -(2**15), 2**15 - 1, 2**16 - 1, True, torch.int16),
        (UINT16, 0, 2**16 - 1, 2**16 - 1, False, torch.uint16),
    ],
    ids=str,
)
def test_a_type_knows_its_range(
    qtype: QType, low: int, high: int, levels: int, signed: bool, stored: torch.dtype
) -> None:
    assert (qtype.qmin, qtype.qmax, qtype.levels, qtype.signed) == (low, high, levels, signed)
    assert torch_dtype(qtype) == stored
    assert torch.from_numpy(np.zeros(1, qtype.numpy_dtype)).dtype == torch_dtype(qtype)
    with pytest.raises(dataclasses.FrozenInstanceError):
        qtype.qmin = 1  # type: ignore[misc]  # the point of the test


@QUICK
@given(
    st.floats(-1e4, 1e4, width=32), st.integers(-9, 4), st.sampled_from([UINT8, INT8, INT4, UINT16])
)
def test_codes_are_the_nearest_with_ties_to_even(x: float, exponent: int, qtype: QType) -> None:
    zero = (qtype.qmin + qtype.qmax) // 2
    exact = round(Fraction(x) / Fraction(2) ** exponent) + zero  # round() is half to even
    expected = min(max(exact, qtype.qmin), qtype.qmax)
    p = params(qtype, 2.0**exponent, zero)
    code = p.quantize(torch.tensor(x))
    assert code.item() == expected
    assert code.dtype == torch_dtype(qtype)
    assert p.dequantize(code).item() == (expected - zero) * 2.0**exponent


def test_a_type_knows_its_bits_and_who_holds_all_of_its_codes() -> None:
    assert [t.bits for t in (INT4, UINT8, INT8_NARROW, UINT16, INT32)] == [4, 8, 8, 16, 32]
    for qtype in (UINT8, INT8, UINT16, INT16, INT32):
        assert storage_qtype(torch_dtype(qtype)) is qtype


def test_codes_before_they_are_clamped_tell_what_is_outside() -> None:
    x, one, zero = torch.tensor([-9.5, 0.5, 9.0]), torch.tensor(1.0), torch.tensor(2)
    assert unbounded_codes(x, one, zero).tolist() == [-8, 2, 11]
    assert affine_codes(x, one, zero, INT4).tolist() == [-8, 2, 7]
    assert x.tolist() == [-9.5, 0.5, 9.0]


def test_the_narrow_type_never_holds_its_lowest_byte() -> None:
    assert params(INT8_NARROW, 1.0, 0).quantize(torch.tensor([-1e9, 1e9])).tolist() == [-127, 127]


def test_int32_codes_are_exact_where_float32_is_not() -> None:
    value = 16_777_217.0  # 2**24 + 1, no float32
    p = params(INT32, 0.5, 0)
    assert p.quantize(torch.tensor(value / 2, dtype=torch.float64)).item() == 16_777_217
    assert p.quantize(torch.tensor(1e30)).item() == 2**31 - 1


@pytest.mark.parametrize("axis", [0, 1])
def test_per_channel_parameters_act_along_their_axis(axis: int) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    p = QuantParams(INT8, torch.tensor([1.0, 0.5]), torch.tensor([0, 3]), axis)
    expected = [[1, 2], [9, 11]] if axis == 0 else [[1, 7], [3, 11]]
    assert p.quantize(x).tolist() == expected
    assert torch.equal(p.dequantize(p.quantize(x)), x)


def test_an_observer_spec_reads_as_text() -> None:
    spec = ObserverSpec("percentile", (("p", 99.9), ("bins", 64)))
    assert str(spec) == "percentile p=99.9 bins=64"
    assert hash(ObserverSpec("minmax")) == hash(ObserverSpec("minmax"))


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
