"""The fixed-point core against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool.backends.kernels import fixed_point as fp
from qtool.core.errors import KernelError

INT32 = st.integers(-(2**31), 2**31 - 1)


def half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def half_away(value: Fraction) -> int:
    return half_up(value) if value >= 0 else -half_up(-value)


@pytest.mark.parametrize(
    ("real", "mantissa", "exponent"),
    [
        (0.0, 0, 0),
        (1.0, 2**30, 1),
        (0.5, 2**30, 0),
        (1 - 2**-40, 2**30, 1),  # rounds up to a power of two
        (2.0**-32, 2**30, -31),
        (2.0**-33, 0, 0),  # flushed
        (0.05 / 0.12, 1789569707, -1),
    ],
)
def test_quantize_multiplier(real, mantissa, exponent):
    by = fp.quantize_multiplier(real)
    assert (int(by.mantissa), int(by.exponent)) == (mantissa, exponent)


def test_quantize_multiplier_refuses_what_cannot_be_shifted():
    with pytest.raises(KernelError, match="bring input and output scales closer"):
        fp.quantize_multiplier(2.0**31)


def test_channel_multipliers_are_shaped_for_broadcasting():
    by = fp.channel_multipliers([0.5, 1.0], (2, 1, 1))
    assert by.mantissa.tolist() == [[[2**30]], [[2**30]]]
    assert by.exponent.flatten().tolist() == [0, 1]


@settings(deadline=None)
@given(INT32, INT32)
def test_high_multiply_rounds_ties_up(a, b):
    got = fp.saturating_rounding_doubling_high_mul(torch.tensor(a), torch.tensor(b))
    assert int(got) == min(half_up(Fraction(a * b, 2**31)), 2**31 - 1)


@settings(deadline=None)
@given(INT32, st.integers(0, 31))
def test_divide_by_power_of_two_rounds_ties_away(x, exponent):
    got = fp.rounding_divide_by_pot(torch.tensor(x), exponent)
    assert int(got) == half_away(Fraction(x, 2**exponent))


@settings(deadline=None)
@given(st.integers(-(2**30), 2**30), st.integers(1, 5000))
def test_divide_rounds_ties_away(x, by):
    assert int(fp.divide_half_away(torch.tensor(x), by)) == half_away(Fraction(x, by))


@settings(deadline=None)
@given(st.integers(-(2**40), 2**40))
def test_wrap32_is_modular(x):
    assert int(fp.wrap32(torch.tensor(x))) == (x + 2**31) % 2**32 - 2**31


@settings(deadline=None)
@given(st.integers(-(2**20), 2**20))
def test_wrap16_is_modular(x):
    assert int(fp.wrap16(torch.tensor(x))) == (x + 2**15) % 2**16 - 2**15


def test_multiply_rounds_twice():
    by = fp.quantize_multiplier(0.375)  # 0.75 * 2**-1
    x = torch.tensor([-6, -2, 2, 6])
    # 0.75 x = -4.5 -1.5 1.5 4.5 -> -4 -1 2 5 (ties up), halved: -2 -0.5 1 2.5 (ties away)
    assert fp.multiply_by_quantized_multiplier(x, by).tolist() == [-2, -1, 1, 3]


def test_multiply_wraps_the_left_shift():
    by = fp.quantize_multiplier(2.0**20)
    got = fp.multiply_by_quantized_multiplier(torch.tensor([1, 2**10]), by)
    assert got.tolist() == [2**20, -(2**30)]  # 2**10 << 21 has become -2**31


@settings(deadline=None)
@given(st.integers(-(2**47), 2**47 - 1), st.floats(2.0**-20, 0.99))
def test_wide_multiply_has_one_rounding(x, real):
    by = fp.quantize_multiplier(real)
    mantissa, exponent = int(by.mantissa), int(by.exponent)
    reduced = 0x7FFF if mantissa >= 0x7FFF0000 else (mantissa + 2**15) >> 16
    want = half_up(Fraction(x * reduced, 2 ** (15 - exponent)))
    assert int(fp.multiply_wide(torch.tensor(x), by)) == (want + 2**31) % 2**32 - 2**31


def test_saturating_left_shift():
    x = torch.tensor([-300, 1, 300])
    assert fp.saturating_left_shift(x, 7, 16).tolist() == [-32768, 128, 32767]
