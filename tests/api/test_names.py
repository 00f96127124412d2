"""Names that no file can have: one sentence, wherever a path is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.page import write_report
from qtool.recipe import Recipe
from qtool.search.archive import Archive
from qtool.sources import load_data, load_model, load_weights

NAMES = {"NUL": "a\0b", "long": "n" * 300, "deep": "x/" * 2500 + "y", "circle": "circle"}
READERS: dict[str, Callable[[str], Any]] = {
    "a model": load_model,
    "a program": lambda path: load_model(f"{path}.pt2"),
    "an ONNX file": qtool.capture.load_onnx,
    "weights": lambda path: load_weights(nn.Linear(2, 2), path),
    "data": load_data,
    "a calibration": qtool.Calibration.load,
    "a recipe": lambda path: Recipe.of(f"{path}.toml"),
    "a file to verify": qtool.verify,
    "a file to look into": qtool.inspect,
    "a report": lambda path: write_report(Path(path), lambda _: pytest.fail("it was begun")),
    "an archive": lambda path: Archive(Path(path), {}),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reader", READERS)
def test_no_file_is_called_so(
    reader: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    with pytest.raises(qtool.QtoolError):
        READERS[reader](NAMES[name])
    assert [p.name for p in tmp_path.iterdir()] == ["circle"]


def test_a_report_of_no_such_name(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    data = [torch.randn(4, 4)]
    with pytest.raises(qtool.FileError, match="name another file"):
        qtool.quantize(model, data).report(data, tmp_path / "a\0b")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_a_recipe_without_an_end(device: str, tmp_path: Path) -> None:
    (link := tmp_path / "recipe.toml").symlink_to(device)
    with pytest.raises(qtool.FileError, match="it is no ordinary file"):
        Recipe.of(link)
