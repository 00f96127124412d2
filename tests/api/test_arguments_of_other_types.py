"""What is nothing of the kind that an argument takes: one sentence."""

import os
from collections.abc import Callable
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
    model = nn.Sequential(nn.Linear(4, 3)).eval()
    quantized: Any = qtool.quantize(model, [torch.randn(8, 4)], accuracy="fast")
    for path in (5, None, b"m.onnx"):
        with pytest.raises(TypeError, match="PathLike"):
            quantized.export(path)
        with pytest.raises(TypeError, match="PathLike"):
            qtool.verify(path)  # type: ignore[arg-type]  # what is tested
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
@pytest.mark.parametrize("end", ["pipe", "/dev/zero"])
def test_a_file_without_an_end(end: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"m.{suffix}"
    if end == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(end)
    model, data = nn.Sequential(nn.Linear(4, 3)).eval(), [torch.randn(8, 4)]
    uses: tuple[Callable[[], Any], ...] = (
        lambda: qtool.inspect(path),
        lambda: qtool.verify(path),
        lambda: qtool.evaluate(path, model, data),
        lambda: qtool.bench([path], data),
    )
    for use in uses:
        with pytest.raises(qtool.QtoolError, match=r"not a regular file|no such file"):
            use()
