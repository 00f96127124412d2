"""Folders of images named by class: the order of the classes is listed, and can be chosen."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

Image = pytest.importorskip("PIL.Image")
COLOURS = {"red": (200, 20, 30), "green": (10, 180, 40), "blue": (30, 10, 220)}
MODEL = "tests.cli.models:colours"
PHOTOS = ("photos", "--transform", "tests.cli.models:pixels")
ORDER = ("--classes", "red,green,blue")


@pytest.fixture
def file(cli: Cli) -> str:
    for name, colour in COLOURS.items():
        (cli.folder / "photos" / name).mkdir(parents=True)
        for i in range(8):
            changed = tuple(value + i for value in colour)
            Image.new("RGB", (8, 8), changed).save(cli.folder / "photos" / name / f"{i}.png")
    return "colours.onnx"


def test_accuracy_follows_the_classes(cli: Cli, file: str) -> None:
    made = cli("quantize", MODEL, "--data", *PHOTOS, "--eval-data", "photos", "-o", file)
    assert "labels are class names in alphabetical order: blue=0, green=1, red=2" in made.stderr
    assert made.stderr.count("blue=0") == 1
    assert "33.33 %" in made.stdout
    made = cli("quantize", MODEL, "--data", *PHOTOS, "--eval-data", "photos", *ORDER, "-o", file)
    assert "100 %" in made.stdout
    assert "blue=0" not in made.stderr

    shutil.copy(file, "other.onnx")
    for command in (("evaluate", file, "--model", MODEL), ("compare", file, "other.onnx")):
        words = (*command, "--data", *PHOTOS, "--seconds", "0.01", "--json")
        guess, chosen = cli(*words), cli(*words, *ORDER)
        assert "blue=0" in guess.stderr
        assert "blue=0" not in chosen.stderr
        values = [json.loads(each.stdout) for each in (guess, chosen)]
        metrics = [v["accuracy"]["metrics"][0]["values"][0] for v in values]
        assert metrics == pytest.approx([1 / 3, 1.0])


def test_labels_that_are_not_used_are_noted(cli: Cli, file: str) -> None:
    made = cli("quantize", MODEL, "--data", *PHOTOS, "-o", file)
    assert "photos has labels; --eval-data photos measures accuracy with them" in made.stderr


def test_a_file_of_names_in_the_folder_counts(cli: Cli, file: str) -> None:
    Path("photos/classes.txt").write_text("red\ngreen\nblue\n")
    made = cli("quantize", MODEL, "--data", *PHOTOS, "--eval-data", "photos", "-o", file)
    assert "100 %" in made.stdout
    assert "blue=0" not in made.stderr
