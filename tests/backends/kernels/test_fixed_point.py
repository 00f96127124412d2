"""Fixed-point multipliers, and the fused multiply-add."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool.backends.kernels import fixed_point as fp
from qtool.backends.kernels.fma import fma32
from qtool.core.errors import KernelError


def nearest_float32(value: Fraction) -> float:
    """The nearest float32, halves to even, by comparing three neighbours exactly."""
    guess = np.float32(float(value))
    around = [
        np.nextafter(guess, np.float32(-np.inf)),
        guess,
        np.nextafter(guess, np.float32(np.inf)),
    ]
    best = min(abs(Fraction(float(c)) - value) for c in around)
    nearest = [c for c in around if abs(Fraction(float(c)) - value) == best]
    return float(next(c for c in nearest if len(nearest) == 1 or c.view(np.int32) % 2 == 0))


def triples(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random factors, and addends that bring the sum close to the middle of two floats."""
    a, b = torch.randn(count), torch.randn(count)
    product = a.double() * b.double()
    c = (torch.randn(count) * 2.0 ** torch.randint(-40, 40, (count,))).float()
    near = (product.float() - product).float()
    return a, b, torch.where(torch.arange(count) % 2 == 0, c, near)


def test_is_rounded_once():
    a, b, c = triples(2000)
    got = fma32(a, b, c)
    for x, y, z, value in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        assert value == nearest_float32(Fraction(x) * Fraction(y) + Fraction(z))


def test_double_rounding_would_be_seen():
    # The product's last bits make the exact sum lie just above the middle of two floats;
    # rounded to float64 first, it would be the middle itself, and go to even.
    a, b = torch.tensor(1 + 2.0**-12), torch.tensor(1 + 2.0**-12)
    c = torch.tensor(2.0**-60)
    exact = fma32(a, b, c)
    twice = (a.double() * b.double() + c.double()).float()
    assert float(exact) == nearest_float32((1 + Fraction(1, 2**12)) ** 2 + Fraction(1, 2**60))
    assert float(exact) != float(twice)


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
