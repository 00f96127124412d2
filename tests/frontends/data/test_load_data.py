from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qtool.core.data.array_files import ArrayFiles
from qtool.core.errors import DataError
from qtool.frontends.data.load_data import Rows, load_data
from tests.frontends.conftest import COUNT, save_image
from tests.named_cases import cases


def as_tensor(image: Any) -> torch.Tensor:
    """A user's transform."""
    return torch.from_numpy(np.asarray(image.resize((8, 8)), np.float32) / 255).permute(2, 0, 1)


def waveform(wave: Any, rate: int) -> Any:
    assert rate == 16000
    return wave[:100]


def uneven(image: Any) -> torch.Tensor:
    return torch.zeros(1 + int(np.asarray(image)[0, 0, 0]) % 7)


def fails(image: Any) -> torch.Tensor:
    raise ValueError("no such size")


def words(image: Any) -> str:
    return "words"


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


def test_arrays_as_before(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 3), np.float32))
    assert isinstance(load_data(tmp_path), ArrayFiles)
    assert isinstance(load_data(tmp_path / "x.npy"), ArrayFiles)


def test_objects_by_name() -> None:
    assert load_data(f"{HERE}:made") is made
    assert list(load_data("builtins:range(3)")) == [0, 1, 2]


@cases(
    "transform, message",
    (None, "no preprocessing found for these images; pass 'transform'"),
    ("uneven", r"returns \[\d\] for .*png and \[\d\] for .*png; resize to one"),
    ("fails", "failed for .*png: ValueError: no such size"),
    ("words", "returns a str, not a tensor"),
    ("made", "is a list, not a function"),
)
def test_transforms_that_do_not_fit(images: Path, transform: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(load_data(images, transform=None if transform is None else f"{HERE}:{transform}"))


def test_damaged_images(images: Path) -> None:
    damaged = images / "cat" / "1.png"
    damaged.write_bytes(damaged.read_bytes()[:200])
    given = {"transform": f"{HERE}:as_tensor"}
    with pytest.raises(DataError, match=r"1.png cannot be read as an image"):
        list(load_data(images, **given))
    with pytest.raises(DataError, match=r"1 of 6 samples cannot be read, more than .* 0.1 .*1.png"):
        load_data(images, unreadable=0.1, **given)
    data = load_data(images, unreadable=0.2, **given)
    assert [len(b) for b in data] == [5]
    assert len(data.labels) == 5
    assert len(data.unreadable) == 1
    assert "1.png" in data.unreadable[0]


def test_a_grey_image_is_given_in_rgb(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    save_image(tmp_path / "a.png", 0)
    image.open(tmp_path / "a.png").convert("L").save(tmp_path / "a.png")
    (batch,) = load_data(tmp_path, transform=f"{HERE}:as_tensor")
    assert batch.shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    "options", [{"transform": "a:b"}, {"max_length": 3}, {"padded": True}, {"unreadable": 0.5}]
)
def test_what_is_of_no_use_is_not_ignored(tmp_path: Path, options: dict[str, Any]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 3), np.float32))
    for source in (f"{HERE}:made", tmp_path, tmp_path / "x.npy"):
        with pytest.raises(DataError, match=f"model inputs.*; leave out '{next(iter(options))}'"):
            load_data(source, **options)


def test_positions_are_those_of_the_data(images: Path) -> None:
    data = load_data(images, 2, transform=f"{HERE}:as_tensor", samples=3)
    assert data.positions.tolist() == [0, 2, 4]
    batches = (data.batches[1], data.batches[0])
    assert replace(data, batches=batches).positions.tolist() == [4, 0, 2]
