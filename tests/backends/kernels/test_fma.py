"""fma32 against exact rational arithmetic, and a proof that two roundings would differ."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from qtool.backends.kernels.fma import fma32


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
