"""qtool bench: timings with their spread. No test looks at how long anything takes."""

import json

import numpy as np
import pytest

from qtool.evaluation.bench import Bench
from tests.cli.conftest import Cli
from tests.evaluation.onnx_files import linear_file


@pytest.fixture
def files(cli: Cli) -> list[str]:
    for name in ("float.onnx", "digits.int8.onnx"):
        linear_file(cli.folder / name, np.eye(3))
    return ["float.onnx", "digits.int8.onnx"]


def test_what_could_not_be_told_is_said(cli: Cli, files: list[str]) -> None:
    result = cli("bench", *files, "--seconds", "0.01", "--precision", "1e-9", "--json", code=1)
    found = json.loads(result.stdout)
    assert not found["precise"]
    assert [t["batch"] for t in found["timings"]] == [1, 32]
    ratio = found["timings"][0]["ratios"][1]
    assert ratio["low"] <= ratio["median"] <= ratio["high"]
    assert "increase --seconds" in result.stderr


def test_the_default_precision_is_no_goal(
    cli: Cli, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default is where a timing stops early; on a busy machine it is a note."""
    monkeypatch.setattr(Bench, "precise", property(lambda _: False))
    words = ("bench", *files, "--seconds", "0.01", "--batch-sizes", "1", "--json")
    assert "increase --seconds" in cli(*words).stderr
    assert "increase --seconds" in cli(*words, "--precision", "0.5", code=1).stderr


def test_one_file_alone(cli: Cli, files: list[str]) -> None:
    words = ("bench", files[0], "--seconds", "0.01", "--batch-sizes", "2", "--json")
    assert json.loads(cli(*words).stdout)["precise"]


def test_refusals(cli: Cli, files: list[str]) -> None:
    linear_file(cli.folder / "z.onnx", np.eye(3), rank=3)
    assert "takes other inputs" in cli.refuses("bench", files[0], "z.onnx")
    linear_file(cli.folder / "two.onnx", np.eye(3), size=2)
    words = ("bench", "two.onnx", "--seconds", "0.01")
    assert "does not accept batch size 1" in cli.refuses(*words, "--batch-sizes", "1")
    assert "two.onnx takes batches of 2 alone" in cli(*words).stdout
    assert "no such file" in cli.refuses("bench", "no.onnx")
