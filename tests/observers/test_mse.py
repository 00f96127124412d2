"""Ranges of rows whose values are all at hand."""

from __future__ import annotations

import pytest
import torch

from qtool import observers
from qtool.core.types import INT4, UINT4, ObserverSpec, QType
from qtool.observers.mse import least_error

TYPES = {"zero points": (UINT4, False), "symmetric": (INT4, True)}


def error(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, *of: object) -> torch.Tensor:
    params = observers.solve(low, high, *of, axis=0)  # type: ignore[arg-type]  # a type and a bool
    return (params.round_trip(x) - x).square().sum(1)


@pytest.mark.parametrize(("qtype", "symmetric"), TYPES.values(), ids=TYPES.keys())
def test_no_row_is_worse_than_by_its_extremes_and_all_together_better(
    qtype: QType, symmetric: bool
) -> None:
    x = torch.randn(500, 32, generator=torch.Generator().manual_seed(0))
    found = error(x, *least_error(x, qtype, symmetric), qtype, symmetric)
    extremes = error(x, x.amin(1).double(), x.amax(1).double(), qtype, symmetric)
    assert (found <= extremes).all()
    assert found.sum() < 0.95 * extremes.sum()


def test_it_comes_near_an_exhaustive_search() -> None:
    x = torch.randn(40, 32, generator=torch.Generator().manual_seed(1))
    found = error(x, *least_error(x, UINT4, False), UINT4, False)
    low, high = x.amin(1).double(), x.amax(1).double()
    ratios = [1.1 - i / 50 for i in range(40)]
    each = [error(x, low * a, high * b, UINT4, False) for a in ratios for b in ratios]
    assert found.sum() < 1.1 * torch.stack(each).amin(0).sum()


def test_rows_of_zeros_and_of_one_value() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 3.0], [-2.0, -2.0]])
    low, high = least_error(x, UINT4, False)
    assert error(x, low, high, UINT4, False).max() < 1e-12


def test_an_observer_without_a_way_of_its_own_takes_its_statistic() -> None:
    x = torch.randn(3, 100)
    low, high = observers.range_of_rows(ObserverSpec("minmax"), x, UINT4, False)
    assert torch.equal(low, x.amin(1).double())
    assert torch.equal(high, x.amax(1).double())
