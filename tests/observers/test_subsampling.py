"""Counting a part of large samples: the same state whatever the batches, and the right range."""

import numpy as np
import pytest
import torch

from qtool.core.errors import DataError
from qtool.observers import Histogram
from qtool.observers.ranges import percentile
from qtool.observers.statistic import CHUNK

SHAPES = {
    "images": (24, 14, 28),
    "tokens": (130, 96),
    "larger than a piece": (3, 320, 300),
    "small": (16,),
}


def data(name: str, count: int = 12) -> torch.Tensor:
    x = torch.randn(count, *SHAPES[name], generator=torch.Generator().manual_seed(0))
    return x * torch.linspace(0.2, 3, SHAPES[name][0]).reshape(-1, *[1] * (len(SHAPES[name]) - 1))


def of(*batches: torch.Tensor) -> Histogram:
    found = Histogram(None)
    for batch in batches:
        found.update_subsampled(batch)
    return found


def same(a: Histogram, b: Histogram) -> bool:
    left, right = a.state(), b.state()
    return all(np.array_equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("last", [False, True], ids=["first", "channels last"])
def test_batches_their_order_and_merging_do_not_matter(name: str, last: bool) -> None:
    x = data(name)
    if last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    whole = of(x)
    assert same(of(*x.split(5)), whole)
    assert same(of(*reversed(x.split(1))), whole)
    one, other = of(x[:3]), of(x[3:])
    other.merge(one)
    assert same(other, whole)
    assert not same(of(x[1:]), whole)


@pytest.mark.parametrize("name", list(SHAPES))
def test_extremes_are_those_of_all_elements(name: str) -> None:
    x = data(name)
    low, high = of(x).extent()
    assert (float(low), float(high)) == (float(x.min()), float(x.max()))
    assert data("larger than a piece")[0].numel() > CHUNK


@pytest.mark.parametrize("name", list(SHAPES))
def test_every_part_of_a_sample_is_met(name: str) -> None:
    x, full = data(name, 64), Histogram(None)
    full.update(x)
    thin = of(x)
    if name != "small":
        assert int(thin.counts.sum()) < int(full.counts.sum()) / 3
    for p in (99.0, 99.9):
        wanted, found = percentile(full, p), percentile(thin, p)
        assert all(abs(float(b / a) - 1) < 0.06 for a, b in zip(wanted, found, strict=True))


def test_an_extreme_that_was_not_counted_is_in_the_range_of_small_data() -> None:
    x = torch.rand(1, 20, 20, 30)
    x.view(-1)[1] = 9.0  # the step never meets the second element
    bins = next(of(x).channel_bins())
    assert bins.high == 9.0
    assert bins.counts[-1] == 1


@pytest.mark.parametrize("where", [0, 1, -1])
def test_a_bad_value_changes_nothing(where: int) -> None:
    x = data("images")
    seen = of(x)
    bad = x.clone()
    bad.view(-1)[where] = float("nan")
    with pytest.raises(DataError, match="NaN"):
        seen.update_subsampled(bad)
    assert same(seen, of(x))


def test_a_saved_one_goes_on_where_it_stopped() -> None:
    x = data("images")
    first = of(x[:7])
    again = Histogram.from_state(first.state(), None)
    again.update_subsampled(x[7:])
    assert same(again, of(x))


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_lowest_of_clamped_values_need_not_be_looked_for(name: str) -> None:
    x = data(name).relu()
    seen = Histogram(None)
    for batch in x.split(3):
        seen.update_subsampled(batch, clamped=True)
    assert same(seen, of(x))
    bad = x[:2].clone()
    bad[1].view(-1)[7] = float("nan")
    with pytest.raises(DataError, match="NaN or Inf"):
        seen.update_subsampled(bad, clamped=True)
    assert same(seen, of(x)), "nothing of a bad batch is kept"


@pytest.mark.parametrize("wider", [1, 3])
def test_batches_of_several_sizes_taken_together(wider: int) -> None:
    x, other = data("tokens"), wider * data("tokens")[:, :77]
    seen, bad = of(x[:4]), data("small")
    seen.update_subsampled(x[4:], other, x[:0], data("small"))
    assert same(seen, of(x, other, data("small")))
    bad[-1, -1] = float("inf")
    with pytest.raises(DataError, match="NaN or Inf"):
        seen.update_subsampled(x, bad)
    assert same(seen, of(x, other, data("small"))), "nothing of bad batches is kept"
