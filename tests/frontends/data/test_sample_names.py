"""Names and thumbnails of the samples of folders and text files."""

from __future__ import annotations

import base64
import io

import pytest

from qtool.frontends.data.load_data import Rows, load_data
from qtool.frontends.data.rows import Row
from qtool.frontends.data.sample_names import SIDE, SampleNames


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
