from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qtool.api.data import load_data
from qtool.frontends.data.row_data import Rows
from tests.frontends.conftest import COUNT, save_image


def as_tensor(image: Any) -> torch.Tensor:
    """A user's transform."""
    return torch.from_numpy(np.asarray(image.resize((8, 8)), np.float32) / 255).permute(2, 0, 1)


def waveform(wave: Any, rate: int) -> Any:
    assert rate == 16000
    return wave[:100]


made = [torch.zeros(2, 3)]
HERE = __name__


def test_images_in_batches(images: Path) -> None:
    data = load_data(images, 4, transform=f"{HERE}:as_tensor")
    assert isinstance(data, Rows)
    assert [len(b) for b in data] == [4, 2]
    assert len(data) == 2
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert next(iter(data)).shape == (4, 3, 8, 8)
    assert data.dynamic is None
    assert all(torch.equal(a, b) for a, b in zip(data, data, strict=True)), "read again alike"


def test_sounds_through_a_function(sounds: Path) -> None:
    pytest.importorskip("soundfile")
    (batch,) = load_data(sounds, transform=f"{HERE}:waveform")
    assert batch.shape == (COUNT, 100)


def test_objects_by_name() -> None:
    assert load_data(f"{HERE}:made") is made
    assert list(load_data("builtins:range(3)")) == [0, 1, 2]


def test_a_grey_image_is_given_in_rgb(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    save_image(tmp_path / "a.png", 0)
    image.open(tmp_path / "a.png").convert("L").save(tmp_path / "a.png")
    (batch,) = load_data(tmp_path, transform=f"{HERE}:as_tensor")
    assert batch.shape == (1, 3, 8, 8)


def test_positions_are_those_of_the_data(images: Path) -> None:
    data = load_data(images, 2, transform=f"{HERE}:as_tensor", samples=3)
    assert data.positions.tolist() == [0, 2, 4]
    batches = (data.batches[1], data.batches[0])
    assert replace(data, batches=batches).positions.tolist() == [4, 0, 2]
