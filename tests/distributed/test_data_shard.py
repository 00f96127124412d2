"""How batches are dealt out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from qtool.core.data.array_files import ArrayFiles
from qtool.distributed import DataShard, balance, data_name, interleave


class Counted:
    """Data that knows its length and remembers what was read of it."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[int]:
        return self.every(0, 1)

    def every(self, first: int, step: int) -> Iterator[int]:
        for i in range(first, 7, step):
            self.read.append(i)
            yield i


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_batch_goes_to_one_rank(size: int) -> None:
    shares = [DataShard(range(7), rank, size) for rank in range(size)]
    assert sorted(batch for share in shares for batch in share) == list(range(7))
    assert [len(share) for share in shares] == [len(list(share)) for share in shares]


def test_data_is_asked_for_the_own_batches_alone() -> None:
    data = Counted()
    assert list(DataShard(data, 1, 3)) == [1, 4]
    assert data.read == [1, 4]


def test_data_without_a_length() -> None:
    share = DataShard(iter(range(7)), 2, 3)
    with pytest.raises(TypeError):
        len(share)
    assert list(share) == [2, 5]


def test_array_files(tmp_path: Path) -> None:
    for i, count in enumerate((5, 3, 4)):
        np.save(tmp_path / f"{i}.npy", np.full((count, 2), i, np.float32))
    whole = ArrayFiles(tmp_path, 2)
    batches = list(whole)
    for size in (2, 3, 9):
        shares = [list(DataShard(whole, rank, size)) for rank in range(size)]
        for i, batch in enumerate(batches):
            assert torch.equal(shares[i % size][i // size], batch)


def test_other_data_has_another_name(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.zeros((5, 2), np.float32))
    name = data_name(ArrayFiles(tmp_path, 2))
    assert name == data_name(ArrayFiles(tmp_path, 2))
    assert name != data_name(ArrayFiles(tmp_path, 3))
    np.save(tmp_path / "1.npy", np.zeros((5, 2), np.float32))
    assert name != data_name(ArrayFiles(tmp_path, 2))
    assert data_name([1, 2]) == "list of 2 batches"
    assert data_name(iter([1, 2])) == "list_iterator"


def test_tasks_are_dealt_by_what_they_cost() -> None:
    assert balance([1, 5, 2, 2], 2) == [1, 0, 1, 1]
    assert balance([1, 1, 1], 1) == [0, 0, 0]
    assert balance([3, 3], 4) == [0, 1]
    assert balance([], 2) == []


def test_shares_are_put_in_turn() -> None:
    data = list(range(7))
    assert interleave([data[r::3] for r in range(3)]) == data
    assert interleave([[1], [], [2, 3]]) == [1, 2, 3]
