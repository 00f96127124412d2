"""Files for browsers are run on the provider that loads them there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.backends.onnxruntime.webgpu_summary import describe_on_webgpu
from qtool.plugins.emulators import browser_check
from tests.needs import needs_web
from tests.plugins.emulators.webgpu_networks import needs_webgpu

UNTIMED = qtool.FileOptions(timing=0)


def written(path: Path, target: str, mode: str = "static") -> qtool.QuantizedFile:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 8)
    batch = torch.randn(16, 3, 8, 8)
    options = {"target": target, "mode": mode, "accuracy": "fast"}
    return qtool.write_file(
        qtool.quantize(nn.Sequential(*layers).eval(), [batch], **options), path, UNTIMED
    )


@needs_web
def test_a_file_for_webassembly_runs_there(tmp_path: Path) -> None:
    file = written(tmp_path / "a.onnx", "onnxruntime-web")
    rows = dict(file.browser)
    assert rows["wasm"].startswith("all ")
    assert "codes identical, outputs" in rows["wasm"]
    assert "1 sample (onnxruntime-web " in rows["wasm"]
    assert rows["on WebGPU"].startswith("1 convolution, 1 linear layer in float, ")
    assert "roundings on the CPU provider, with copies" in rows["on WebGPU"]
    assert file.passed


@needs_webgpu
def test_a_file_for_webgpu_runs_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "a.onnx", "onnxruntime-webgpu", "weight-only")
    ((label, text),) = file.browser
    assert label == "webgpu"
    assert "0 activations on the CPU provider (onnxruntime-webgpu " in text
    assert file.passed
    assert "nothing is rounded there" in describe_on_webgpu(file.path)
    monkeypatch.setattr(qtool.WebGpuComparison, "agrees", property(lambda _: False))
    wrong = written(tmp_path / "b.onnx", "onnxruntime-webgpu", "weight-only")
    assert not wrong.passed
    assert "on WebGPU the file differs" in str(wrong)


@pytest.mark.parametrize(
    ("target", "mode", "option"),
    [("onnxruntime-web", "static", "--web"), ("onnxruntime-webgpu", "weight-only", "--webgpu")],
)
def test_what_is_missing_is_said(
    target: str, mode: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTOOL_CACHE", str(tmp_path))
    file = written(tmp_path / "a.onnx", target, mode)
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
    assert "WebGPU" not in str(file)
    assert "on WebGPU: " in file.details()
