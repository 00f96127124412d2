"""Batches from whatever the user has."""

from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from qtool.core.data import Batch, batches, to_batch, to_tensor
from qtool.core.errors import DataError
from tests.models.small import NETWORKS
from tests.passes.differential import Function

X = torch.arange(12.0).reshape(6, 2)
LABELS = torch.arange(6)
ONE_INPUT = Function(lambda x: x)
Pair = namedtuple("Pair", ["image", "label"])


class Stream(IterableDataset):
    """Samples one after the other, without a length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from X


class Samples(Dataset):
    """Dicts of numpy arrays by index, as a user's dataset may give them."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixels": X[index].numpy(), "label": index}


def _collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor(np.stack([s["pixels"] for s in samples]))}


def _generator() -> Iterator[torch.Tensor]:
    yield from X.split(4)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: DataLoader(TensorDataset(X), 4), id="DataLoader"),
        pytest.param(lambda: DataLoader(TensorDataset(X, LABELS), 4), id="images and labels"),
        pytest.param(lambda: DataLoader(Stream(), 4), id="iterable DataLoader"),
        pytest.param(lambda: DataLoader(Samples(), 4, collate_fn=_collate), id="collate_fn"),
        pytest.param(lambda: list(X.split(4)), id="tensors"),
        pytest.param(lambda: tuple(X.split(4)), id="a tuple of tensors"),
        pytest.param(lambda: [(x,) for x in X.split(4)], id="tuples"),
        pytest.param(lambda: [[x] for x in X.split(4)], id="lists"),
        pytest.param(lambda: [Pair(x, x) for x in X.split(4)], id="named tuples"),
        pytest.param(lambda: [{"x": x} for x in X.split(4)], id="dicts"),
        pytest.param(lambda: [OrderedDict(x=x.numpy()) for x in X.split(4)], id="dicts of arrays"),
        pytest.param(lambda: [x.numpy() for x in X.split(4)], id="arrays"),
        pytest.param(lambda: [(x.numpy(), 3, "name") for x in X.split(4)], id="more than it takes"),
        pytest.param(_generator, id="a generator"),
        pytest.param(lambda: map(torch.clone, X.split(4)), id="a map"),
        pytest.param(lambda: [Batch((x,)) for x in X.split(4)], id="batches already"),
    ],
)
def test_forms(data: Callable[[], Any]) -> None:
    found = list(batches(data(), ONE_INPUT))
    assert [b.size for b in found] == [4, 2]
    values = [[*b.args, *b.kwargs.values()] for b in found]
    assert all(len(v) == 1 for v in values)
    assert torch.equal(torch.cat([v[0] for v in values]), X)


def test_batches_are_drawn_one_at_a_time() -> None:
    drawn = []

    def source() -> Iterator[torch.Tensor]:
        for i in range(3):
            drawn.append(i)
            yield X

    stream = batches(source(), ONE_INPUT)
    assert drawn == []
    next(stream)
    assert drawn == [0]


@pytest.mark.parametrize(
    ("model", "taken"),
    [
        pytest.param(None, 3, id="no model"),
        pytest.param(ONE_INPUT, 1, id="one argument"),
        pytest.param(NETWORKS["two_inputs"].make(), 2, id="two arguments"),
        pytest.param(NETWORKS["keywords"].make(), 1, id="and one by name"),
        pytest.param(nn.ParameterList(), 3, id="any number"),
    ],
)
def test_of_a_tuple_the_first_ones_are_taken(model: nn.Module | None, taken: int) -> None:
    (batch,) = batches([(X, LABELS, LABELS)], model)
    assert len(batch.args) == taken


def test_finite() -> None:
    to_batch((X, LABELS, torch.zeros(0, 3), torch.tensor(True))).check_finite(0)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        pytest.param(Batch((X,)), 6, id="first dimension"),
        pytest.param(Batch((torch.tensor(3.0), X)), 6, id="of the first that has one"),
        pytest.param(Batch((), {"a": {"b": X[:2]}}), 2, id="nested"),
        pytest.param(Batch((3,)), 1, id="none"),
    ],
)
def test_size(batch: Batch, size: int) -> None:
    assert batch.size == size


def test_named() -> None:
    model = NETWORKS["two_inputs"].make()
    batch = Batch((X,), {"vector": LABELS})
    assert list(batch.arguments_of(model)) == ["image", "vector"]
    with pytest.raises(DataError, match=r"TwoInputs.forward\(image.*missing a required"):
        Batch((X,)).arguments_of(model)


def test_moving_keeps_what_is_no_tensor() -> None:
    moved = Batch((X, [LABELS, 3]), {"flag": True}).to(torch.device("meta"))
    assert moved.args[0].device.type == moved.args[1][0].device.type == "meta"
    assert moved.args[1][1] == 3
    assert moved.kwargs == {"flag": True}


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.arange(4.0)[::-1], id="backwards"),
        pytest.param(np.arange(4.0).astype(">f8"), id="another byte order"),
        pytest.param(np.array(3.0), id="a number"),
        pytest.param(np.arange(16.0).reshape(4, 4).T, id="transposed"),
        pytest.param(np.broadcast_to(np.arange(4.0), (3, 4)), id="read-only"),
    ],
)
def test_arrays_of_any_layout(array: np.ndarray) -> None:
    found = to_tensor(array)
    assert found.shape == array.shape
    assert np.array_equal(found.numpy(), array)


def test_memory_is_shared_where_it_can_be() -> None:
    array = np.zeros(3)
    to_tensor(array)[0] = 1
    assert array[0] == 1
    array.flags.writeable = False
    to_tensor(array)[1] = 1
    assert array[1] == 0


class Breaks:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __iter__(self) -> Iterator[torch.Tensor]:
        raise self.error


@pytest.mark.parametrize("error", [OSError("gone"), SystemExit(3), RuntimeError("a\nb")])
def test_data_whose_beginning_fails(error: BaseException) -> None:
    with pytest.raises(DataError, match="the data cannot be read: ") as caught:
        batches(Breaks(error))
    assert "\n" not in str(caught.value)
