"""Labels of a command: where they come from, and why there are none."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from qtool.cli import labels, main
from torch import nn

from tests.mistakes.nets import IMAGES, image_net, quantize

M = "tests.mistakes.nets"
NAMES = np.array(["pear", "apple"] * 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("labels")
    quantize([IMAGES], image_net()).export(place / "int8.onnx")
    np.save(place / "images.npy", IMAGES.numpy())
    np.save(place / "names.npy", NAMES)
    np.savez(place / "both.npz", x=IMAGES.numpy(), label=np.arange(40) % 5, fruit=NAMES)
    np.savez(place / "usual.npz", x=IMAGES.numpy(), label=np.arange(40) % 5)
    (place / "photos").mkdir()
    Image.new("RGB", (8, 8)).save(place / "photos/a.png")
    lines = [f"{i / 8},{1 - i / 9},{i % 3},{'cat' if i % 2 else 'dog'}" for i in range(40)]
    (place / "animals.csv").write_text("\n".join(["a,b,c,label", *lines]))
    return place


def _evaluate(folder: Path, data: str, *more: str, file: str = "int8.onnx") -> Result:
    options = ["--model", f"{M}:image_net", "--other-model", "--seconds", "0.01", "--json"]
    words = ["evaluate", str(folder / file), "--data", str(folder / data), *options, *more]
    return CliRunner().invoke(main, words)


def _metrics(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [metric["name"] for metric in json.loads(result.stdout)["accuracy"]["metrics"]]


def test_names_in_an_array_are_classes(folder: Path) -> None:
    names = str(folder / "names.npy")
    result = _evaluate(folder, "images.npy", "--labels", names)
    assert "top-1" in _metrics(result)
    assert "alphabetical order: apple=0, pear=1" in result.stderr
    result = _evaluate(folder, "images.npy", "--labels", names, "--classes", "pear,apple")
    assert "top-1" in _metrics(result)
    assert "alphabetical" not in result.stderr
    result = _evaluate(folder, "images.npy", "--labels", names, "--classes", "pear")
    assert result.exit_code == 2
    assert "the label 'apple' is none of the classes pear" in result.stderr


def test_the_reason_for_no_labels(folder: Path) -> None:
    result = _evaluate(folder, "usual.npz")
    assert "top-1" not in _metrics(result)
    assert "usual.npz has labels; --labels label measures accuracy with them" in result.stderr
    result = _evaluate(folder, "photos", "--transform", f"{M}:tensor_of")
    assert "top-1" not in _metrics(result)
    assert (
        "photos has no labels, so there is no top-1: put its files into a folder" in result.stderr
    )


def test_an_array_that_is_an_input_is_not_noted_as_labels(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    np.savez(tmp_path / "two.npz", x=np.ones(3), y=np.ones(3))
    for model, noted in ((None, True), (Two(), False)):
        caplog.clear()
        labels.note_labels(tmp_path / "two.npz", model)
        assert ("has labels; --labels y" in caplog.text) == noted


def test_a_column_of_a_usual_name_has_the_labels(folder: Path, tmp_path: Path) -> None:
    words = f"quantize torch.nn:Linear(3,2) --data {folder}/animals.csv --accuracy fast --seconds 0"
    more = f"--eval-data {folder}/animals.csv -o {tmp_path}/animals.onnx --json"
    result = CliRunner().invoke(main, [*words.split(), *more.split()])
    assert result.exit_code == 0, result.output
    metrics = json.loads(result.stdout)["metrics"]
    assert [metric["name"] for metric in metrics] == ["top-1"]
    assert "the column 'label' is left out: it is no input" in result.stderr
    assert "in alphabetical order: cat=0, dog=1" in result.stderr
