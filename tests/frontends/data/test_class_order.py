"""Labels that are names get the numbers that the user, the model or the alphabet gives them."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qtool.core.errors import DataError
from qtool.frontends.data.class_order import class_numbers
from qtool.frontends.data.load_data import load_data
from qtool.frontends.data.rows import Row
from tests.frontends.conftest import save_image
from tests.named_cases import cases

NAMES = ("bar", "circle", "square")


def transform(image: Any) -> Any:
    return np.asarray(image, np.float32).transpose(2, 0, 1) / 255


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for i, name in enumerate((*NAMES, "bar")):
        save_image(tmp_path / "photos" / name / f"{i}.png", i)
    return tmp_path / "photos"


def labels(photos: Path, classes: Any = None) -> list[int]:
    data: Any = load_data(photos, transform=f"{__name__}:transform", classes=classes)
    assert data.labels is data.labels
    return list(data.labels)


def test_the_alphabetical_order_is_listed_once(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "qtool"):
        assert labels(photos) == [0, 0, 1, 2]
    (message,) = caplog.messages
    assert "bar=0, circle=1, square=2" in message
    assert "'classes'" in message


@pytest.mark.parametrize("form", ["list", "text", "file", "inside"])
def test_another_order_is_chosen_in_four_ways(
    photos: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    order = ["circle", "other", "square", "bar"]
    file = photos / "classes.txt" if form == "inside" else photos.parent / "order.txt"
    file.write_text("\n".join(order) + "\n")
    classes = {"list": order, "text": "circle, other,square,bar", "file": str(file), "inside": None}
    with caplog.at_level(logging.WARNING, "qtool"):
        assert labels(photos, classes[form]) == [3, 3, 0, 2]
    assert not caplog.messages


@cases(
    "classes, message",
    ("bar,circle", "the label 'square' is none of the classes bar, circle"),
    ("bar,circle,square,bar", "names 'bar' twice"),
    ("bar,,circle", "is empty"),
    ([], "is empty"),
)
def test_a_list_that_cannot_be_meant_is_refused(photos: Path, classes: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        labels(photos, classes)


@cases(
    "labels, numbers, expected",
    (["b", "a", "b"], {}, [1, 0, 1]),
    (["b", "a", "b"], {"a": 7, "b": 9}, [9, 7, 9]),
    (["10", "2"], {}, [10, 2]),
    ([4, 0], {"0": 1, "4": 2}, [2, 1]),
    (["a", None], {}, None),
)
def test_numbers_of_names(labels: list[Any], numbers: dict[str, int], expected: Any) -> None:
    own = class_numbers([Row(text="x", label=label) for label in labels], numbers)
    assert (None if own is None else own.tolist()) == expected
    assert own is None or own.dtype == np.int64
