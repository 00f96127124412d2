"""What is kept between runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from qtool.core.errors import FileError
from qtool.core.store import Store


@dataclass(frozen=True)
class Figure:
    value: float


def test_kept_under_its_key_alone(tmp_path):
    Store(tmp_path, "a").save("x", {"v": np.arange(3)})
    assert np.array_equal(Store(tmp_path, "a").load("x")["v"], np.arange(3))
    assert Store(tmp_path, "b").load("x") is None
    assert Store(tmp_path, "a").load("y") is None


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"no"])
def test_damaged_is_as_if_absent(tmp_path, damage):
    store = Store(tmp_path, "a")
    store.save("x", {"v": np.arange(3)})
    file = tmp_path / "x.npz"
    file.write_bytes(damage(file.read_bytes()))
    assert store.load("x") is None


def test_once(tmp_path):
    made = []

    def make():
        made.append(1)
        return Figure(len(made))

    assert Store(tmp_path, "a").load_or_make("x", Figure, make) == Figure(1)
    assert Store(tmp_path, "a").load_or_make("x", Figure, make) == Figure(1)
    assert Store(tmp_path, "b").load_or_make("x", Figure, make) == Figure(2)
    Store(tmp_path).clear()
    assert not tmp_path.exists()


def test_without_a_folder_nothing_is_kept():
    store = Store()
    store.save("x", {})
    assert store.load("x") is None
    assert store.load_or_make("x", Figure, lambda: Figure(1.0)) == Figure(1.0)


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file" / "folder", "a")
    with pytest.raises(FileError, match="cannot"):
        store.save("x", {"a": np.zeros(1)})
