"""Files of other tools, with the channels of images last, next to files that have them first."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.session import fit_channels

X = torch.randn(8, 3, 12, 10, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with images as inputs and outputs: in .onnx, .tflite, and as another tool's."""
    pytest.importorskip("ai_edge_litert")
    from qtool.plugins.tflite.file import load, to_bytes

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 1)).eval()
    place = tmp_path_factory.mktemp("layouts")
    for target, name in (("onnxruntime", "ours.onnx"), ("tflite", "ours.tflite")):
        qtool.quantize(net, X, target=target, accuracy="fast").export(place / name)
    own = load(place / "ours.tflite")
    (place / "foreign.tflite").write_bytes(to_bytes(replace(own, metadata={})))
    return place


@pytest.mark.parametrize("first", ["foreign.tflite", "ours.tflite", "ours.onnx"])
def test_files_of_both_layouts_are_compared(first: str, folder: Path) -> None:
    names = [first, *({"foreign.tflite", "ours.tflite", "ours.onnx"} - {first})]
    options = qtool.ReportOptions(seconds=0.01, batch_sizes=(1, 2))
    report = qtool.compare([folder / n for n in names], X, options=options)
    found = dict(zip(names, report.accuracy.models, strict=True))
    for name, model in found.items():
        same = {name.partition(".")[2], first.partition(".")[2]} != {"onnx", "tflite"}
        assert model.sqnr_db is None if same else model.sqnr_db > 30


@pytest.mark.parametrize("first", ["foreign.tflite", "ours.onnx"])
def test_files_of_both_layouts_are_timed(first: str, folder: Path) -> None:
    files = [folder / first, *(p for p in sorted(folder.glob("*.*")) if p.name != first)]
    assert len(qtool.bench(files, seconds=0.01, batch_sizes=(2,)).timings[0].models) == 3


def test_channels_move_only_where_nothing_else_fits() -> None:
    images = np.zeros((2, 3, 12, 10), np.float32)
    assert fit_channels(images, ("batch", 12, 10, 3)).shape == (2, 12, 10, 3)
    assert fit_channels(images, (1, -1, 12, 10)) is images
    assert fit_channels(images, ("batch", 3, 9, 9)) is images
    assert fit_channels(images[0], (3, 12, 10)).shape == (3, 12, 10)
    square = np.zeros((2, 3, 3, 3), np.float32)
    assert fit_channels(square, (2, 3, 3, 3)) is square
