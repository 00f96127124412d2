"""The entropy observer: it clips what is alone, keeps what is many, and is no min-max."""

from __future__ import annotations

import pytest
import torch

from qtool import observers
from qtool.core.types import INT8_NARROW, UINT4, UINT8, ObserverSpec
from qtool.observers import Histogram
from qtool.observers.entropy import entropy


def normal(count: int = 200_000) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


def of(x: torch.Tensor, axis: int | None = None) -> Histogram:
    found = Histogram(axis)
    found.update(x)
    return found


@pytest.mark.parametrize("symmetric", [False, True])
def test_an_outlier_does_not_make_the_range(symmetric: bool) -> None:
    qtype = INT8_NARROW if symmetric else UINT8
    x = torch.cat([normal(), torch.tensor([60.0])])
    low, high = entropy(of(x), qtype, symmetric)
    assert 3 < float(high) < 12
    assert -12 < float(low) < -3


def test_values_that_are_many_are_not_clipped() -> None:
    x = torch.cat([normal(), normal(50_000) * 0.1 + 9])
    _, high = entropy(of(x), UINT8, False)
    assert float(high) > 9


def test_a_normal_distribution_keeps_nearly_all_of_itself() -> None:
    low, high = entropy(of(normal()), UINT8, False)
    assert 2.5 < -float(low) < 5
    assert 2.5 < float(high) < 5


def test_after_a_relu_the_range_begins_at_zero() -> None:
    low, _ = entropy(of(normal().relu()), UINT8, False)
    assert float(low) == 0


def test_zeros_of_a_relu_do_not_make_the_range_narrow() -> None:
    """Half of all values in one bin: spread over its code they would outweigh all else."""
    x = normal().abs() ** 1.5  # a tail, which a step as fine as a bin cuts off
    _, dense = entropy(of(x), UINT8, False)
    _, sparse = entropy(of(torch.cat([x, torch.zeros(200_000)])), UINT8, False)
    assert float(sparse) == pytest.approx(float(dense), rel=0.1)
    assert float(sparse) > 0.6 * float(x.max())


def test_fewer_codes_clip_more() -> None:
    _, wide = entropy(of(normal().abs()), UINT8, False)
    _, narrow = entropy(of(normal().abs()), UINT4, False)
    assert float(narrow) < float(wide)


def test_channels_have_ranges_of_their_own() -> None:
    x = torch.stack([normal(5000), normal(5000) * 10])
    _, high = entropy(of(x, 0), UINT8, False)
    assert 5 < float(high[1] / high[0]) < 20


def test_zeros_and_one_value() -> None:
    assert [float(t) for t in entropy(of(torch.zeros(9)), UINT8, False)] == [0, 0]
    _, high = entropy(of(torch.full((9,), 3.0)), UINT8, False)
    assert float(high) == 3


def test_it_is_registered_with_its_defaults() -> None:
    spec = observers.parse("entropy")
    assert spec == ObserverSpec("entropy")
    x = torch.cat([normal(), torch.tensor([60.0])])
    low, high = observers.range_of(spec, of(x), UINT8, False)
    assert (float(low), float(high)) != (float(x.min()), 60.0)


def test_values_that_are_all_above_zero() -> None:
    low, high = entropy(of(normal().abs() + 3), UINT8, False)
    assert float(low) == 0
    assert float(high) > 3
    low, high = entropy(of(-normal().abs() - 3), UINT8, False)
    assert float(low) < -3
    assert float(high) == 0
