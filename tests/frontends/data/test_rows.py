"""Rows of data: names of samples, order of classes."""

import base64
import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qtool.api.data import load_data
from qtool.core.errors import DataError
from qtool.frontends.data.class_order import class_numbers
from qtool.frontends.data.row_data import Rows
from qtool.frontends.data.rows import Row, read_rows
from qtool.frontends.data.sample_names import SIDE, SampleNames
from tests.frontends.conftest import COUNT, TEXTS, save_image, save_lines, save_sound
from tests.named_cases import cases


def test_images_by_class_in_order_of_their_names(images: Path) -> None:
    rows = read_rows(images)
    assert [r.image.name for r in rows] == ["1.png", "3.png", "5.png", "0.png", "2.png", "4.png"]
    assert [r.label for r in rows] == ["cat"] * 3 + ["dog"] * 3
    assert rows[0].kinds == ("image",)


def test_images_with_texts(captioned: Path) -> None:
    rows = read_rows(captioned)
    assert [r.text for r in rows] == TEXTS
    assert {r.kinds for r in rows} == {("image", "text")}


def test_sounds(sounds: Path) -> None:
    assert {r.kinds for r in read_rows(sounds)} == {("sound", "text")}


def test_a_text_a_line(texts: Path) -> None:
    assert [r.text for r in read_rows(texts)] == TEXTS


@cases(
    "row, expected",
    ({"text": "a", "label": 3}, Row(text="a", label=3)),
    ({"premise": "a", "hypothesis": "b", "label": "no"}, Row(text="a", pair="b", label="no")),
    ({"sentence1": "a", "sentence2": "b"}, Row(text="a", pair="b")),
    ({"question": "a", "context": "b"}, Row(text="a", pair="b")),
    ({"text": "a", "target": "b", "id": 7}, Row(text="a", target="b")),
)
def test_columns_as_datasets_call_them(tmp_path: Path, row: dict[str, Any], expected: Row) -> None:
    assert read_rows(save_lines(tmp_path / "rows.jsonl", [row])) == [expected]


def _mixed(folder: Path) -> Path:
    save_image(folder / "0.png", 0)
    save_sound(folder / "1.wav", 1)
    return folder


def _missing(folder: Path) -> Path:
    save_lines(folder / "metadata.jsonl", [{"file_name": "gone.png"}])
    return folder


@cases(
    "make, message",
    (_mixed, r"a sample has sound \(.*1.wav\), the first one has image"),
    (_missing, "names gone.png, which is not there"),
    (lambda f: save_lines(f / "a.jsonl", []), "a.jsonl is empty"),
)
def test_refusals(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_rows(make(tmp_path))


def test_there_are_as_many_rows_as_samples(captioned: Path, sounds: Path) -> None:
    assert len(read_rows(captioned)) == len(read_rows(sounds)) == COUNT


@pytest.fixture
def folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(2):
            color = (255 * number, 100 * i, 0)
            image.new("RGB", (200, 100), color).save(tmp_path / name / f"{i}.png")
    return tmp_path


def test_folder_of_images(folder):
    data = load_data(folder, transform="numpy:asarray")
    names = data.sample_names()
    assert [names.sample(i) for i in range(4)] == [
        *("cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png")
    ]
    assert [names.class_(n) for n in (0, 1, 2, None)] == ["cat", "dog", "", ""]
    head, _, code = names.thumbnail(2).partition(",")
    assert head == "data:image/jpeg;base64"
    image = pytest.importorskip("PIL.Image")
    with image.open(io.BytesIO(base64.b64decode(code))) as small:
        assert small.size == (SIDE, SIDE // 2)
        assert small.getpixel((10, 10))[0] > 240, "the red one"


def test_names_of_the_model_and_of_texts():
    rows = [Row(text="  a\nshort text"), Row(text="x" * 100), Row(text="b", label=1)]
    names = Rows([rows], list, {"no": 0, "yes": 1}).sample_names()
    assert names.sample(0) == "a short text"
    assert names.sample(1) == "x" * 59 + "…"
    assert names.class_(1) == "yes"
    assert names.thumbnail(0) == ""


def test_samples_without_names():
    names = SampleNames()
    assert (names.sample(0), names.class_(0), names.thumbnail(0)) == ("", "", "")


def test_an_unreadable_image_has_no_thumbnail(tmp_path):
    pytest.importorskip("PIL.Image")
    (tmp_path / "a.png").write_bytes(b"no image")
    names = SampleNames([Row(image=tmp_path / "a.png")])
    assert names.sample(0) == "a.png"
    assert names.thumbnail(0) == ""


def test_placeholders_of_transformers_are_no_names() -> None:
    classes = {"LABEL_0": 0, "cat": 1, "LABEL_3": 2}
    names = Rows([[Row(text="a")]], list, classes).sample_names()
    assert [names.class_(n) for n in range(3)] == ["", "cat", "LABEL_3"]


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
