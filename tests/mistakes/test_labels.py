"""Mistakes with labels of files and arrays."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

import qtool
from qtool.core.numpy_files import find_labels
from qtool.evaluation.label_checks import check_labels_of
from qtool.frontends.data.class_order import class_numbers
from qtool.frontends.data.rows import Row
from qtool.metrics.labels import check_classes, check_labels
from tests.mistakes.mistake import Cases, check_noted, check_refused
from tests.mistakes.nets import custom, images

NAMES = {"neg": 0, "pos": 1}
REFUSED: Cases = {
    "another length": (
        lambda: check_labels([0] * 7, 40),
        "7 labels for 40 samples; pass one per sample",
    ),
    "one-hot": (
        lambda: check_labels(np.eye(5), 5),
        "the labels have shape [5, 5]; pass one class number per sample",
    ),
    "another length, seen before the model is captured": (
        lambda: _quantize_with_labels([0] * 7),
        "7 labels for 40 samples; pass one per sample",
    ),
    "one-hot, seen before the model is captured": (
        lambda: _quantize_with_labels(np.eye(40)),
        "the labels have shape [40, 40]; pass one class number per sample",
    ),
    "texts": (
        lambda: check_classes(np.array(["cat"]), 5),
        "the labels are <U3; pass class numbers, whole and from 0",
    ),
    "names of classes, seen before the model is captured": (
        lambda: _quantize_with_labels(["cat", "dog"] * 20),
        "the labels are names, such as 'cat'; pass class numbers, ... or number them in alphabet",
    ),
    "rows of the data in another order": (
        lambda: check_labels_of(_rows_of([2, 1, 0]), _rows_of([0, 1, 2])),
        "another order (row 1 is 0 in the data, 2 in the labels); give labels.loc[data.index]",
    ),
    "without values": (
        lambda: _quantize_with_labels(np.zeros((40, 0))),
        "the labels have shape [40, 0]; pass one class number per sample",
    ),
    "batches of a loader": (
        lambda: check_labels([(np.zeros((4, 3)), 0)], 4),
        "the labels are a list that is no array; pass one class number per sample",
    ),
    "infinite": (
        lambda: check_classes(np.array([1, np.inf]), 5),
        "the labels are float64; pass class numbers, whole and from 0",
    ),
    "the name of a column": (
        lambda: check_labels("price", 40),
        "the labels are the text 'price'; pass the values, as frame['price']",
    ),
    "records, in a matrix": (
        lambda: _quantize_with_labels(np.zeros((40, 2), "i4,i4")),
        "the labels are records; pass one of their fields",
    ),
    "probabilities": (
        lambda: check_classes(np.array([0.3, 0.7]), 5),
        "the labels are float64; pass class numbers, whole and from 0",
    ),
    "from 1": (
        lambda: check_classes(np.array([1, 2, 3]), 3),
        "the labels are 1 to 3, the model has 3 classes; labels start at 1: subtract 1",
    ),
    "below 0": (
        lambda: check_classes(np.array([-1, 0]), 3),
        "the labels are -1 to 0, the model has 3 classes; pass numbers of 0 to 2",
    ),
    "of more classes": (
        lambda: check_classes(np.array([0, 99]), 3),
        "the labels are 0 to 99, the model has 3 classes; pass numbers of 0 to 2",
    ),
    "a key that is not there": (
        lambda: find_labels("y", _arrays()),
        "data.npz holds no array 'y'; it holds x, label",
    ),
    "a file that is not there": (
        lambda: find_labels("labels.npy", Path("images")),
        "there is no labels file labels.npy, and images is no .npz that could hold them",
    ),
    "labels of a folder, by a name": (
        lambda: find_labels("labels", Path()),
        "there is no labels file labels, and . is no ... folders of classes are labels in any case",
    ),
    "a file of several arrays": (
        lambda: find_labels("data.npz", _arrays()),
        "data.npz holds x, label; name the one with the labels 'labels'",
    ),
}
NOTED: Cases = {
    "longer names": (
        lambda: class_numbers(_rows("negative", "positive"), NAMES),
        "no accuracy: the label 'negative' is none of ... those names, or class numbers from 0",
    ),
    "capital letters": (
        lambda: class_numbers(_rows("Neg", "Pos"), NAMES),
        "no accuracy: the label 'Neg' is none of the ... those names, or class numbers from 0",
    ),
    "a class too many": (
        lambda: class_numbers(_rows("neg", "pos", "neutral"), NAMES),
        "no accuracy: the label 'neutral' is none of the ... those names, or class numbers from 0",
    ),
}


def _rows_of(names: list[int]) -> Any:
    """Return what is read of a Series and of a DataFrame with these rows."""
    index = Index(names)
    return SimpleNamespace(
        index=index, columns=["a"], to_numpy=None, __array__=lambda *_: np.array(names)
    )


class Index(list[int]):
    """What is read of an index of pandas."""

    def equals(self, other: Any) -> bool:
        return self == other


def _rows(*labels: str) -> list[Row]:
    return [Row(text="a cat", label=label) for label in labels]


def _arrays() -> Path:
    np.savez("data.npz", x=np.zeros(3), label=np.zeros(3))
    return Path("data.npz")


@pytest.fixture(autouse=True)
def arrays(folder: Path) -> Path:
    return _arrays()


def _quantize_with_labels(labels: ArrayLike) -> None:
    """Quantize a model that fails when it is captured."""
    evaluation = qtool.EvaluationData(images(), labels)
    qtool.quantize_to_file(custom(0), images(), "net.onnx", evaluation=evaluation)  # type: ignore[arg-type]  # no function


@pytest.mark.parametrize(("call", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused(call, expected):
    check_refused(call, expected)


@pytest.mark.parametrize(("call", "expected"), NOTED.values(), ids=NOTED)
def test_noted(call, expected, caplog):
    check_noted(call, expected, caplog)
