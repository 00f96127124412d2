"""Which float file speed is relative to. Times are given, not taken."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.formats import open_file, open_model
from qtool.evaluation import baseline as module
from qtool.evaluation.baseline import Baseline
from qtool.evaluation.evaluation import runtime_of
from qtool.evaluation.latency.interleaved_timing import Ratio, Spread, Timing
from qtool.evaluation.speedup import measure_speedup, untimed_reason

X = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).eval()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that the user has: its metadata is not qtool's."""
    path = tmp_path_factory.mktemp("own") / "net.onnx"
    qtool.capture_model(network(), X).export_float(path)
    model = onnx.load(path)
    model.producer_name = "the user"
    onnx.save(model, path)
    return path


def timing(files: Any) -> Timing:
    spreads = (Spread(2.0, 1.9, 2.1), Spread(1.0, 0.9, 1.1))
    return Timing(1, 1, 9, 1.0, spreads, (Ratio(*[1.0] * 5), Ratio(*[2.0] * 5)))


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Path], list[tuple[int, ...]]]]:
    """The files that are timed, and the shapes of their inputs."""
    calls: list[tuple[list[Path], list[tuple[int, ...]]]] = []

    def pretend(files: Any, inputs: Any, **_: Any) -> Timing:
        calls.append(([Path(f) for f in files], [x.shape for x in inputs]))
        return timing(files)

    monkeypatch.setattr("qtool.evaluation.latency.decoding.time_files", pretend)
    return calls


def test_the_onnx_file_that_the_model_was_read_from(
    own: Path, tmp_path: Path, timed: list[Any]
) -> None:
    model = qtool.quantize(qtool.load_onnx(own), [X], accuracy="fast")
    model.export(tmp_path / "int8.onnx")
    speed = measure_speedup(model, tmp_path / "int8.onnx")
    assert speed.rows() == [
        ("speed", "1.00 ms, 2.00x as fast as net.onnx (2.00 ms; batch 1, 1 thread)")
    ]
    assert str(speed).startswith("2.000 ms in float (net.onnx), 1.000 ms in int8")
    result = qtool.evaluate(tmp_path / "int8.onnx", qtool.load_onnx(own), [X])
    assert "as fast as net.onnx (2.00 ms; batch 1, 1 thread)" in str(result)
    assert [files[0] for files, _ in timed] == [own, own]


def test_a_relative_path_still_leads_to_the_file(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own.parent)
    captured = qtool.capture_model(qtool.load_onnx(own.name), X)
    monkeypatch.chdir(tmp_path)
    assert Baseline(captured, tmp_path, "onnxruntime").timed == own


def test_a_model_of_torch_is_exported(tmp_path: Path) -> None:
    captured = qtool.capture_model(network(), X)
    baseline = Baseline(captured, tmp_path, "onnxruntime")
    assert baseline.timed == baseline.reference == baseline.profiled == tmp_path / "float.onnx"
    assert baseline.name == "float"
    assert baseline.origin == "the float model, exported by qtool"


@pytest.mark.parametrize("why", ["gone", "fixed"])
def test_a_file_that_cannot_run_the_batches_is_no_baseline(
    why: str, own: Path, tmp_path: Path
) -> None:
    """It was moved, or its batch is fixed and the user made it dynamic."""
    path = tmp_path / "mine.onnx"
    model = onnx.load(own)
    if why == "fixed":
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)
    one = X[:1] if why == "fixed" else X
    captured = qtool.capture_model(
        qtool.load_onnx(path), one, {model.graph.input[0].name: {0: "n"}}
    )
    if why == "gone":
        path.unlink()
    baseline = Baseline(captured, tmp_path, "onnxruntime")
    assert baseline.timed == tmp_path / "float.onnx"
    open_model(baseline.timed).run([X.numpy()])


@pytest.fixture(scope="module")
def tflite(tmp_path_factory: pytest.TempPathFactory) -> tuple[qtool.QuantizedModel, Path]:
    path = tmp_path_factory.mktemp("tflite") / "int8.tflite"
    model = qtool.quantize(network(), [X], target="tflite", accuracy="fast")
    model.export(path)
    return model, path


def test_a_tflite_file_is_compared_with_a_float_one(
    tflite: tuple[qtool.QuantizedModel, Path], timed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = tflite
    monkeypatch.setattr("qtool.plugins.tflite.litert.version", lambda: "2.9")
    speed = measure_speedup(model, path)
    expected = "1.00 ms, 2.00x as fast as float .tflite (2.00 ms; batch 1, 1 thread), in LiteRT 2.9"
    assert speed.rows() == [("speed", expected)]
    result = qtool.evaluate(path, network(), [X])
    assert expected in str(result)
    assert [files[0].name for files, _ in timed] == ["float.tflite", "float.tflite"]


def test_the_float_tflite_file_runs(
    tflite: tuple[qtool.QuantizedModel, Path], tmp_path: Path
) -> None:
    model, path = tflite
    baseline = Baseline(model.captured, tmp_path, "tflite", ".tflite")
    assert baseline.profiled == baseline.timed
    assert baseline.origin == "the float model, exported by qtool; timed: float .tflite"
    found = open_model(baseline.timed)
    (output,) = found.run([X.numpy()])
    np.testing.assert_allclose(output, network()(X).detach().numpy(), atol=1e-4)
    speed = model.speed(path, seconds=0.01)
    assert speed.ratio > 0


def test_onnx_where_tflite_lacks_an_operator(
    tflite: tuple[qtool.QuantizedModel, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = module.write_float

    def lacks(graph: Any, path: Path, target: str) -> Path:
        if path.suffix == ".tflite":
            raise qtool.ExportError("no such operator")
        return write(graph, path, target)

    monkeypatch.setattr(module, "write_float", lacks)
    baseline = Baseline(tflite[0].captured, tmp_path, "tflite", ".tflite")
    assert baseline.timed == baseline.profiled == tmp_path / "float.onnx"
    assert baseline.name == "float .onnx"


def test_files_for_another_processor(tmp_path: Path, timed: list[Any]) -> None:
    """A microcontroller's file takes one sample: it is not timed on a batch of eight."""
    model = qtool.quantize(network(), [X], target="tflite-micro", accuracy="fast")
    path = tmp_path / "int8.tflite"
    model.export(path)
    assert measure_speedup(model, path) is None
    sentence = "files for tflite-micro run on another processor"
    assert untimed_reason("tflite-micro", ".tflite") == sentence
    assert runtime_of(open_file(path)).endswith(", on this CPU, not on tflite-micro")
    result = qtool.evaluate(path, network(), [X])
    assert "on this CPU, not on tflite-micro" in str(result)
    assert timed[-1][1] == [(1, 3, 8, 8)]
