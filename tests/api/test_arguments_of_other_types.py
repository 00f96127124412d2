"""What is nothing of the kind that an argument takes: one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qtool

OTHERS: dict[str, dict[str, Any]] = {
    "observer": {"observer": 5},
    "no observer": {"observer": None},
    "target": {"target": []},
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_option(name: str) -> None:
    with pytest.raises(qtool.QtoolError, match=r"observer is|unknown target"):
        qtool.quantize(nn.Sequential(nn.Linear(4, 3)).eval(), [torch.randn(8, 4)], **OTHERS[name])


def test_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quantized: Any = qtool.quantize(nn.Sequential(nn.Linear(4, 3)).eval(), [torch.randn(8, 4)])
    for path in (5, None, b"m.onnx"):
        with pytest.raises(qtool.FileError, match="name another file"):
            quantized.export(path)
        with pytest.raises(qtool.QtoolError):
            qtool.verify(path)  # type: ignore[arg-type]  # what is tested
    assert not list(tmp_path.iterdir())
