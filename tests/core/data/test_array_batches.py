"""Data as whole arrays: one array of all samples, arrays by name, a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qtool.core.data import batches, peek
from qtool.core.data.arguments import Arguments
from qtool.core.data.array_batches import ArrayBatches, table_arrays, whole_arrays
from qtool.core.errors import DataError
from tests.passes.differential import Function

X = torch.arange(80.0).reshape(40, 2)
ONE_INPUT = Function(lambda x: x)


class Frame:
    """The part of a DataFrame that is read, of a library that need not be installed."""

    def __init__(self, **columns: Any) -> None:
        self.columns = list(columns)
        self._values = columns

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def to_numpy(self) -> Any:
        return np.stack(list(self._values.values()), 1)


TABLE = Frame(
    width=np.arange(40),
    height=np.linspace(0, 1, 40),
    label=np.arange(40) % 2,
    **{"": np.arange(40)},
)


@pytest.mark.parametrize("data", [X, X.numpy()], ids=["a tensor", "an array"])
def test_one_array_is_all_samples(data):
    parts = list(batches(data, ONE_INPUT))
    assert [b.size for b in parts] == [32, 8]
    assert torch.equal(torch.cat([b.args[0] for b in parts]), X)


def test_arrays_by_name():
    first, again = peek({"x": X, "mask": X.numpy()}, nn.ParameterList())
    assert first is not None
    assert list(first.kwargs) == ["x", "mask"]
    assert len(list(again)) == 2


def test_the_columns_of_a_frame_are_one_input(caplog):
    (first, second) = batches(TABLE, ONE_INPUT)  # type: ignore[arg-type]  # as a DataFrame
    assert first.args[0].dtype == torch.float32
    assert first.args[0].shape == (32, 2)
    assert second.args[0][-1].tolist() == [39.0, 1.0]
    assert "'label, without a name' is left out" in caplog.text


def test_columns_with_the_names_of_arguments():
    class Named(nn.Module):
        def forward(self, width, height, extra=None):
            return width + height

    (first, _) = batches(TABLE, Named())  # type: ignore[arg-type]  # as a DataFrame
    assert {k: v.dtype for k, v in first.kwargs.items()} == {
        "width": torch.int64,
        "height": torch.float32,
    }


def test_a_column_of_lists_is_an_input():
    pixels = np.empty(4, object)
    pixels[:] = [[1.0, 2.0, 3.0]] * 4
    assert table_arrays({"pixels": pixels}, Arguments())[""].shape == (4, 3)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": np.zeros(2), "city": np.array(["x", "y"], object)}, "column 'city' holds 'x', no"),
        ({"a": np.zeros(2), "b": np.zeros((2, 3))}, "column 'b' holds lists"),
        ({"a": np.array([[1], [1, 2]], object)}, "column 'a' holds"),
    ],
    ids=["text", "lists", "lists of different lengths"],
)
def test_what_is_no_table(columns, message):
    with pytest.raises(DataError, match=message):
        table_arrays(columns, Arguments())


def test_every_other_batch():
    data = whole_arrays(X)
    assert isinstance(data, ArrayBatches)
    assert data.sample_count == 40
    assert [len(b) for b in data.every(1, 2)] == [8]


@pytest.mark.parametrize(
    ("item", "left", "model"),
    [
        ({"x": X, "path": ["a"], "id": X}, ["x"], ONE_INPUT),
        ({"image": X, "path": ["a"], "label": X}, [], ONE_INPUT),  # by position
        ({"image": X, "id": X}, ["image", "id"], ONE_INPUT),  # which one is not known
        ({"x": X, "id": X}, ["x", "id"], nn.ParameterList()),  # takes anything
    ],
    ids=["more", "another name", "ambiguous", "variadic"],
)
def test_entries_that_are_no_arguments(item, left, model):
    (batch,) = batches([item], model)
    assert list(batch.kwargs) == left
