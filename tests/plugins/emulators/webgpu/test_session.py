"""Files on a GPU; here SwiftShader takes its place, and software adapters are refused."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from qtool.cli import main

import qtool
from qtool.backends.formats import open_model, other_runtime
from qtool.core.errors import OptionError, VerificationError
from qtool.plugins.emulators import jobs
from qtool.plugins.emulators.available import webgpu_folder
from qtool.plugins.emulators.webgpu import gpu_process
from qtool.plugins.emulators.webgpu.gpu_process import Adapter, list_adapters
from tests.evaluation.onnx_files import linear_file
from tests.plugins.emulators.webgpu_networks import needs_webgpu

GPU = Adapter("A GPU", "discrete")
LLVMPIPE = Adapter("llvmpipe (LLVM 15.0.6, 256 bits)", "software")


@pytest.fixture
def swiftshader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Show the driver of SwiftShader to the process."""
    forget = gpu_process.adapters.cache_clear  # a test may replace `adapters`
    forget()
    gpu_process.PROCESS.close()
    folder = webgpu_folder() / "lib"
    monkeypatch.setenv("VK_DRIVER_FILES", str(folder / jobs.DRIVER_FILE))
    monkeypatch.setenv("QTOOL_VULKAN_DRIVER", str(folder / jobs.SWIFTSHADER))
    yield
    forget()
    gpu_process.PROCESS.close()


def with_adapters(monkeypatch: pytest.MonkeyPatch, *adapters: Adapter) -> None:
    monkeypatch.setattr(gpu_process, "adapters", lambda: adapters)
    monkeypatch.setattr(gpu_process, "webgpu_version", lambda: "1.27.0")


@needs_webgpu
def test_a_software_adapter_is_named_and_not_timed(swiftshader: None, tmp_path: Path) -> None:
    (adapter,) = gpu_process.adapters()
    assert "SwiftShader" in adapter.name
    assert not adapter.is_gpu
    file = linear_file(tmp_path / "a.onnx", np.eye(3))
    result = CliRunner().invoke(main, ["bench", str(file), "--runtime", "webgpu"])
    assert result.exit_code == 2
    assert "SwiftShader" in result.stderr
    assert "are not timed" in result.stderr


def test_a_discrete_gpu_comes_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with_adapters(monkeypatch, LLVMPIPE, Adapter("chip", "integrated"), GPU)
    assert gpu_process.gpu() == GPU
    assert gpu_process.version() == "1.27.0 on A GPU"
    with_adapters(monkeypatch, LLVMPIPE)
    assert "llvmpipe (LLVM 15.0.6, 256 bits)) are not timed" in gpu_process.problem()


def test_without_vulkan_there_are_no_adapters() -> None:
    assert list_adapters(None) == []


@needs_webgpu
def test_files_run_and_are_timed_on_the_adapter(
    swiftshader: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_adapters(monkeypatch, GPU)
    file, x = linear_file(tmp_path / "a.onnx", np.eye(3)), np.ones((2, 3), np.float32)
    session = open_model(file, 1, "webgpu")
    np.testing.assert_array_equal(session.run([x])[0], x)
    assert session.seconds([x], 20, pytest.fail) > session.seconds([x], 0, pytest.fail)
    timed = qtool.bench([file, file], [x], batch_sizes=(2,), seconds=0.01, runtime="webgpu")
    assert timed.runtime.endswith("WebGPU provider, version 1.27.0 on A GPU")
    with pytest.raises(OptionError, match="a GPU has no threads"):
        open_model(file, 2, "webgpu")


def test_files_of_the_target_are_not_timed_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_adapters(monkeypatch, LLVMPIPE)
    torch.manual_seed(0)
    model, x = torch.nn.Linear(64, 64).eval(), torch.randn(8, 64)
    quantized = qtool.quantize(
        model, [x], target="onnxruntime-webgpu", mode="weight-only", accuracy="fast"
    )
    (file,) = [qtool.write_file(quantized, tmp_path / "a.onnx")]
    assert file.speed is None
    assert "speed     not measured: Vulkan names no GPU" in str(file)
    with pytest.raises(VerificationError, match="a search measures time in webgpu: Vulkan names"):
        qtool.tune(model, [x], [x], target="onnxruntime-webgpu")


def test_why_nothing_is_timed_without_the_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTOOL_CACHE", str(tmp_path))
    gpu_process.adapters.cache_clear()
    assert "docs/emulators.md says how" in other_runtime("webgpu").problem()
    gpu_process.adapters.cache_clear()
