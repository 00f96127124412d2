"""Files for browsers are run in WebAssembly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.plugins.emulators import browser_check
from tests.needs import needs_web

UNTIMED = qtool.FileOptions(timing=0)


def written(path: Path, target: str) -> qtool.QuantizedFile:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 8)
    batch = torch.randn(16, 3, 8, 8)
    return qtool.write_file(
        qtool.quantize(nn.Sequential(*layers).eval(), [batch], target=target, accuracy="fast"),
        path,
        UNTIMED,
    )


@needs_web
def test_a_file_for_webassembly_runs_there(tmp_path: Path) -> None:
    file = written(tmp_path / "a.onnx", "onnxruntime-web")
    rows = dict(file.browser)
    assert rows["wasm"].startswith("all ")
    assert "codes identical, outputs" in rows["wasm"]
    assert "1 sample (onnxruntime-web " in rows["wasm"]
    assert file.passed


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QTOOL_CACHE", str(tmp_path))
    file = written(tmp_path / "a.onnx", "onnxruntime-web")
    assert file.browser[0][1].startswith("not run there: cannot emulate ")
    assert "docs/emulators.md says how to install what is missing" in file.browser[0][1]
    assert file.passed


def test_a_large_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_check, "_MAX_MACS", 1e3)
    file = written(tmp_path / "a.onnx", "onnxruntime-web")
    assert "`qtool verify a.onnx --cpu wasm` runs it" in file.browser[0][1]


def test_people_of_other_targets_are_not_bothered(tmp_path: Path) -> None:
    file = written(tmp_path / "a.onnx", "onnxruntime")
    assert file.browser == ()
