from pathlib import Path
from typing import Any

import pytest

from qtool.core.errors import DataError
from qtool.frontends.data.rows import Row, read_rows
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


def _empty(folder: Path) -> Path:
    (folder / "notes.md").touch()
    return folder


def _mixed(folder: Path) -> Path:
    save_image(folder / "0.png", 0)
    save_sound(folder / "1.wav", 1)
    return folder


def _loose(folder: Path) -> Path:
    save_image(folder / "cat" / "0.png", 0)
    save_image(folder / "1.png", 1)
    return folder


def _missing(folder: Path) -> Path:
    save_lines(folder / "metadata.jsonl", [{"file_name": "gone.png"}])
    return folder


@cases(
    "make, message",
    (lambda f: f / "nowhere", "no such file or folder"),
    (_empty, "has no data; supported files are .npy"),
    (_mixed, r"a sample has sound \(.*1.wav\), the first one has image"),
    (_loose, "has class folders and a file outside of them, .*1.png"),
    (_missing, "names gone.png, which is not there"),
    (lambda f: save_lines(f / "a.jsonl", []), "a.jsonl is empty"),
    (lambda f: save_lines(f / "a.jsonl", [{"words": "a"}]), "line 1 has no text, image or"),
    (lambda f: save_lines(f / "a.jsonl", [3]), "line 1 holds a int, not an object"),
)
def test_refusals(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_rows(make(tmp_path))


def test_what_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\nno\n')
    with pytest.raises(DataError, match=r"a.jsonl, line 2 is not JSON"):
        read_rows(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read as text"):
        read_rows(path)
    other = tmp_path / "a.xls"
    other.touch()
    with pytest.raises(DataError, match=r"data is a folder, a file of .npy, .npz, .txt, .csv"):
        read_rows(other)


def test_there_are_as_many_rows_as_samples(captioned: Path, sounds: Path) -> None:
    assert len(read_rows(captioned)) == len(read_rows(sounds)) == COUNT
