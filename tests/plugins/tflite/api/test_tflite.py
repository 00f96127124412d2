"""TFLite files in the public API: verify, inspect, evaluate, bench; and what refuses them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.onnx.storage import load_outline
from qtool.backends.profiles import PROFILES, profile
from qtool.core.errors import (
    FileError,
    InstallError,
    KernelError,
    QtoolError,
    VerificationError,
)
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.file import Model, Operator, PortNames, Quantization, Tensor, to_bytes
from tests.needs import needs_litert
from tests.planning.targets.converted import captured, converted, samples


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    paths = {name: folder / f"{name}.tflite" for name in ("tflite", "tflite-micro")}
    for name, path in paths.items():
        converted("residual_concat", name).export(path, verify=False)
    return paths


@needs_litert
@pytest.mark.parametrize("name", ["tflite", "tflite-micro"])
def test_verify_compares_every_code(name: str, files: dict[str, Path]) -> None:
    random = qtool.verify(files[name], samples=8, batch_size=4)
    data = qtool.verify(files[name], [samples("residual_concat")[:5]])
    for result in (random, data):
        assert result.exact
        assert result.passed
        assert "LiteRT" in str(result)
    assert (random.samples, data.samples) == (8, 5)


class Normed(nn.Module):
    """A norm in float between layers of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.norm(self.first(x))).relu()
        return scores


@needs_litert
def test_the_delegate_is_compared_around_float_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    path, x = tmp_path / "model.tflite", torch.randn(64, 6)
    qtool.quantize(Normed().eval(), [x], target="tflite", accuracy="fast").export(path, timing=0)
    delegate = qtool.verify(path, [x]).delegate
    assert delegate.exact
    assert delegate.float_steps > 0
    assert delegate.elements > 64 * (16 + 12)  # the norm's input, and the output
    known = profile(litert.DELEGATE_PROFILE)
    binders = {**known.binders, "linear": shifted(known.binders["linear"])}
    monkeypatch.setitem(PROFILES, known.name, replace(known, binders=binders))
    wrong = qtool.verify(path, [x]).delegate
    assert wrong.identical < wrong.elements


def shifted(kernel: Any) -> Any:
    """Return a kernel whose codes are one too large."""

    def bind(*args: Any, **options: Any) -> Any:
        inner = kernel(*args, **options)
        return lambda x: inner(x) + (inner(x) < 127).to(torch.int8)

    return bind


def test_verify_needs_litert(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litert, "version", lambda: None)
    with pytest.raises(InstallError, match="pip install ai-edge-litert"):
        qtool.verify(files["tflite"])


@needs_litert
def test_files_for_one_sample_are_run_one_by_one(files: dict[str, Path]) -> None:
    data = [samples("residual_concat")[:6]]
    result = qtool.evaluate(files["tflite-micro"], captured("residual_concat"), data, seconds=0.01)
    assert result.accuracy.samples == 6


def test_commands_for_onnx_files_say_so(files: dict[str, Path]) -> None:
    with pytest.raises(FileError, match="is a TFLite file, and this takes ONNX files"):
        load_outline(files["tflite"])


@needs_litert
def test_mutated_files_are_refused_in_a_sentence(files: dict[str, Path], tmp_path: Path) -> None:
    """Read, inspected and run with random bytes changed: sentences, and no crash."""
    original, generator = files["tflite"].read_bytes(), np.random.default_rng(1)
    path, refused = tmp_path / "mutated.tflite", 0
    for _ in range(30):
        data = bytearray(original)
        for place in generator.integers(len(data), size=4):
            data[place] = generator.integers(256)
        path.write_bytes(bytes(data))
        message = refusal(path)
        refused += message is not None
        assert "Traceback" not in (message or "")
    assert refused > 0


@needs_litert
def test_verify_survives_a_crash_of_litert(tmp_path: Path) -> None:
    """Its reference SOFTMAX aborts on a row whose exponentials sum to 512 and more."""
    params = Quantization(np.array([0.1], np.float32), np.array([0]))
    fixed = Quantization(np.array([1 / 256], np.float32), np.array([-128]))
    tensors = tuple(
        Tensor(n, "int8", (1, 600), quantization=q) for n, q in (("x", params), ("y", fixed))
    )
    softmax = Operator("SOFTMAX", (0,), (1,), {"beta": 1.0}, 2)
    model = Model(tensors, (softmax,), (0,), (1,), names=PortNames(("x",), ("y",)))
    path, zeros = tmp_path / "model.tflite", np.zeros((1, 600), np.float32)
    path.write_bytes(to_bytes(model))
    with pytest.raises(VerificationError, match="LiteRT crashes on the model"):
        qtool.verify(path, [zeros])
    other = {"x": np.arange(600, dtype=np.float32)[None] - 300}
    assert qtool.verify(path, [other]).exact  # it goes on in another process


def refusal(path: Path) -> str | None:
    try:
        qtool.inspect(path)
        qtool.verify(path, samples=1, batch_size=1)
    except (FileError, KernelError, VerificationError) as error:
        return str(error)
    except QtoolError as error:  # of data: an input that the mutation changed
        return str(error)
    return None


@needs_litert
def test_a_report_has_a_section_on_microcontrollers(files: dict[str, Path], tmp_path: Path) -> None:
    data, options = [samples("residual_concat")[:4]], qtool.ReportOptions(seconds=0.01)
    plain = captured("residual_concat")
    report = qtool.report(files["tflite-micro"], data, tmp_path / "r", options, model=plain)
    assert report.models[1].deployment is not None
    assert "## Microcontroller" in (tmp_path / "r" / "report.md").read_text()
    assert "takes" in (tmp_path / "r" / "report.html").read_text()
    assert qtool.Report.from_json(report.to_json()) == report
