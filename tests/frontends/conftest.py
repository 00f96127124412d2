"""Folders and files as people keep their data and models."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TEXTS = [
    "the small cat sat on the mat",
    "a dog barks at night",
    "rain falls on the roof of the old house",
    "she reads a long letter",
    "two birds sing in the garden",
    "the train leaves at noon",
]
COUNT = len(TEXTS)
RATE = 16000


def save_image(path: Path, seed: int) -> None:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 255, (20, 24, 3), dtype=np.uint8)
    image.fromarray(values).save(path)


def save_sound(path: Path, seed: int, rate: int = RATE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).normal(size=rate // 4) * 3000
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(values.astype("<i2").tobytes())


def save_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Six images in two class folders."""
    for index in range(COUNT):
        save_image(tmp_path / "images" / ("cat" if index % 2 else "dog") / f"{index}.png", index)
    return tmp_path / "images"


@pytest.fixture
def captioned(tmp_path: Path) -> Path:
    """Images, each with a text in metadata.jsonl."""
    for index in range(COUNT):
        save_image(tmp_path / "captioned" / f"{index}.jpg", index)
    rows = [{"file_name": f"{i}.jpg", "text": TEXTS[i]} for i in range(COUNT)]
    save_lines(tmp_path / "captioned" / "metadata.jsonl", rows)
    return tmp_path / "captioned"


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    """Sound, each with what is said in it."""
    for index in range(COUNT):
        save_sound(tmp_path / "sounds" / f"{index}.wav", index)
    rows = [{"file_name": f"{i}.wav", "text": TEXTS[i]} for i in range(COUNT)]
    save_lines(tmp_path / "sounds" / "metadata.jsonl", rows)
    return tmp_path / "sounds"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS) + "\n")
    return path
