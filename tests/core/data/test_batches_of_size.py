"""Batches of any size for a model with a fixed number of samples."""

import pytest
import torch

from qtool.core.data import Batch
from qtool.core.data.batches import batches_of_size
from qtool.core.errors import DataError


def rows(batches: list[Batch]) -> list[list[float]]:
    return [t.flatten().tolist() for b in batches for _, t in b.tensors()]


def test_samples_come_in_order_and_what_is_left_is_said(caplog: pytest.LogCaptureFixture) -> None:
    data = [Batch((torch.arange(5.0),)), Batch((torch.arange(5.0, 9.0),))]
    found = list(batches_of_size(2, iter(data)))
    assert rows(found) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert "the last 1 samples do not fill a batch of 2" in caplog.text
    assert rows(list(batches_of_size(3, iter(data)))) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_batches_that_fit_or_cannot_be_cut_stay_as_they_are() -> None:
    whole = Batch((torch.ones(3, 2), torch.ones(5, 2)))
    fitting = Batch((torch.ones(2, 2),))
    assert list(batches_of_size(2, iter([whole, fitting]))) == [whole, fitting]


def test_named_arguments_are_cut_alike() -> None:
    batch = Batch((torch.arange(4.0),), {"mask": torch.arange(4.0) + 10})
    found = list(batches_of_size(1, iter([batch])))
    assert [b.kwargs["mask"].item() for b in found] == [10, 11, 12, 13]


def test_too_few_samples_for_a_batch_come_as_they_are() -> None:
    batch = Batch((torch.arange(3.0),))
    assert rows(list(batches_of_size(4, iter([batch])))) == [[0, 1, 2]]


def test_texts_of_other_lengths_are_not_joined() -> None:
    texts = [Batch((torch.ones(1, 4),)), Batch((torch.ones(1, 7),))]
    assert list(batches_of_size(1, iter(texts))) == texts
    with pytest.raises(DataError, match=r"of the sizes \[4\] and \[7\]; pad them to one size"):
        list(batches_of_size(2, iter(texts)))
