"""One call does what `qtool quantize` does: it judges by goals, and checks where files go."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import qtool


def test_judges_by_goals(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    data = [torch.randn(32, 8) for _ in range(2)]
    goals = qtool.FileOptions(timing=0, min_sqnr=200, min_coverage=0.5)
    (file,) = qtool.quantize_to_file(model, data, tmp_path / "m.onnx", file=goals)
    assert not file.passed
    assert file.missed["min_coverage"] == ""
    assert file.warnings == (f"{file.missed['min_sqnr']}; the file was written",)
    assert "below min_sqnr=200" in file.warnings[0]


def test_layouts_of_folders_are_for_folders(tmp_path: Path) -> None:
    with pytest.raises(qtool.OptionError, match="is for a folder of transformers"):
        qtool.quantize_to_file(
            nn.Linear(2, 2), [], tmp_path / "out", file=qtool.FileOptions(layout="genai")
        )
