"""Data as whole arrays: one array of all samples, arrays by name, a table."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qtool.core.array_batches import ArrayBatches, whole_arrays
from qtool.core.columns import InputNames, table_arrays
from qtool.core.data import batches, peek
from qtool.core.errors import DataError
from tests.passes.differential import Function

X = torch.arange(80.0).reshape(40, 2)
ONE_INPUT = Function(lambda x: x)


class Frame:
    """The part of a DataFrame that is read, of a library that need not be installed."""

    def __init__(self, **columns: Any) -> None:
        self.columns = list(columns)
        self._values = columns

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, list):
            return Frame(**{each: self._values[each] for each in name})
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
    (first, *_), again = peek({"x": X, "mask": X.numpy()}, nn.ParameterList())
    assert list(first.kwargs) == ["x", "mask"]
    assert len(list(again)) == 2


def test_the_columns_of_a_frame_are_one_input(caplog):
    (first, second) = batches(TABLE, ONE_INPUT)  # type: ignore[arg-type]  # as a DataFrame
    assert first.args[0].dtype == torch.float32
    assert first.args[0].shape == (32, 2)
    assert second.args[0][-1].tolist() == [39.0, 1.0]
    assert "'label, without a name' is left out" in caplog.text


def test_a_frame_with_a_column_called_name() -> None:
    table = Frame(name=np.arange(40), height=np.linspace(0, 1, 40))
    table.name = table["name"]  # type: ignore[attr-defined]  # pandas has columns as attributes
    (first, _) = batches(table, ONE_INPUT)  # type: ignore[arg-type]  # as a DataFrame
    assert first.args[0].shape == (32, 2)


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
    assert table_arrays({"pixels": pixels}, InputNames())[""].shape == (4, 3)


TAKES = InputNames(frozenset({"x", "region"}), frozenset({"x", "region", "labels"}))
LISTS = np.empty(4, object)
LISTS[:] = [[1.0, 2.0]] * 4


def test_the_other_columns_are_the_one_input_that_has_no_column(caplog):
    flat = {"age": np.arange(4), "region": np.arange(4) % 2, "height": np.ones(4)}
    arrays = table_arrays(flat, TAKES)
    assert arrays["x"].dtype == np.float32
    assert arrays["x"].tolist() == [[0, 1], [1, 1], [2, 1], [3, 1]]
    assert arrays["region"].dtype == np.int64
    assert "the columns age, height are the input 'x'" in caplog.text


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16])
def test_codes_of_categories_are_indices_of_torch(kind):
    codes = table_arrays({"x": np.ones(4), "region": np.arange(4, dtype=kind)}, TAKES)["region"]
    nn.Embedding(4, 2)(torch.from_numpy(codes))
    assert codes.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("age", "region"), "none is 'x'; name the columns as the inputs"),
        (("x", "regoin"), "none is 'region'"),
        (("x", "a", "regions"), "none is 'region'"),
        (("a", "b"), "takes region, x, .* columns a, b: none is 'region'; name the columns as the"),
    ],
)
def test_a_column_of_another_name(names, message):
    with pytest.raises(DataError, match=message):
        table_arrays(dict.fromkeys(names, np.arange(4)), TAKES)


def test_a_frame_keeps_its_columns_until_the_model_is_known():
    """Else `evaluate`, which counts the samples first, would read it in another way."""
    frame = Frame(x=LISTS, region=np.arange(4))
    table = whole_arrays(frame)
    assert (table.sample_count, len(table)) == (4, 1)
    for data in (frame, table):
        arrays = whole_arrays(data, TAKES).arrays
        assert {k: v.shape for k, v in arrays.items()} == {"x": (4, 2), "region": (4,)}


class Series:
    """The part of a Series that is read."""

    def __init__(self, values: Any) -> None:
        self.name, self._values = "a", values

    def to_numpy(self) -> Any:
        return self._values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._values


@pytest.mark.parametrize("values", [np.ones(4), LISTS], ids=["numbers", "lists"])
def test_a_series_is_a_column(values):
    (batch,) = batches(Series(values), ONE_INPUT)  # type: ignore[arg-type]  # as of pandas
    assert batch.args[0].shape == (4, 1 if values.dtype.kind == "f" else 2)
    assert batch.args[0].dtype == torch.float32


def test_rows_of_numbers_are_samples():
    (batch,) = batches([[0.5, 1], [2, 3], (4, 5)], ONE_INPUT)
    assert torch.equal(batch.args[0], torch.tensor([[0.5, 1], [2, 3], [4, 5]]))
    (batch,) = batches({"a": [[1, 2], [3, 4]], "b": Series(np.ones(2))}, nn.ParameterList())
    assert batch.kwargs["a"].dtype == torch.int64
    assert batch.kwargs["b"].dtype == torch.float32
    with pytest.raises(DataError, match=r"row 2 of the data has 1 numbers, the first one 2; give"):
        whole_arrays([[1, 2], [3]])


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
