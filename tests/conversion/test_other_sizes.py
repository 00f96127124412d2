"""Files at other sizes than those of the calibration, against the float model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import qtool
from qtool.backends.onnx.operators import WRITERS
from qtool.backends.onnx.operators.schemas import op
from qtool.backends.onnxruntime.verification import size_parity
from qtool.core.graph import torch_ops
from qtool.core.sqnr import sqnr
from qtool.verification import Verification

IMAGE, TIME = {2: "height", 3: "width"}, {1: "time"}


class Net(nn.Module):
    """A body behind two convolutions, which divide height and width by four."""

    def __init__(self, body: Callable[[Net, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = body
        self.stem, self.down = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.head, self.linear = nn.Conv2d(8, 4, 1), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        half = self.stem(x).relu()
        return self.body(self, half, self.down(half).relu())


BODIES: dict[str, Callable[[Net, Tensor, Tensor], Tensor]] = {
    "average": lambda m, _, d: m.linear(F.adaptive_avg_pool2d(d, (2, 2)).flatten(1)),
    "unequal": lambda m, _, d: m.head(F.adaptive_avg_pool2d(d, (3, 5))),
    "rows": lambda m, _, d: m.head(F.adaptive_avg_pool2d(d, (1, None))),
    "max": lambda m, _, d: m.head(F.adaptive_max_pool2d(d, (2, 3))),
    "largest": lambda m, _, d: m.head(d * F.adaptive_max_pool2d(d, 1)),
    "fpn": lambda m, h, d: m.head(F.interpolate(d, size=h.shape[2:]) + h),
    "unet": lambda m, h, d: m.head(F.interpolate(d, size=h.shape[2:], mode="bilinear") + h),
    "pad": lambda m, _, d: m.head(F.pad(d, (0, -d.shape[3] % 4, 0, -d.shape[2] % 4))),
}


class Several(nn.Module):
    """Networks of one input in one file, since converting costs about the same for all."""

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(network(x) for network in self.networks)


def test_images_of_another_size(tmp_path: Path) -> None:
    model = Several(*map(Net, BODIES.values())).eval()
    result = _export(model, torch.randn(16, 3, 32, 48), IMAGE, tmp_path / "m.onnx")
    assert _session(tmp_path / "m.onnx").get_inputs()[0].shape == ["batch", 3, "height", "width"]
    sizes = [{"height": 16, "width": 36}, {"height": 48, "width": 60}]
    assert [check.sizes for check in result.other_sizes] == sizes
    assert all(check.sqnr_db > 25 and not check.wrong for check in result.other_sizes)
    assert "other sizes" in str(result)
    for shape in ((3, 3, 64, 64), (1, 3, 40, 80), (2, 3, 24, 72)):
        decibels = dict(zip(BODIES, _sqnrs(model, tmp_path / "m.onnx", shape), strict=True))
        assert all(value > 30 for value in decibels.values()), decibels


def test_a_signal_of_another_length(tmp_path: Path) -> None:
    model = Several(*map(Signal, (F.adaptive_avg_pool1d, F.adaptive_max_pool1d))).eval()
    _export(model, torch.randn(16, 3, 64), {2: "length"}, tmp_path / "m.onnx")
    assert min(_sqnrs(model, tmp_path / "m.onnx", (2, 3, 100))) > 25


class Signal(nn.Module):
    def __init__(self, pool: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pool, self.conv, self.head = pool, nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.conv(x).relu(), 6))


def test_recurrent_layers_with_more_steps(tmp_path: Path) -> None:
    model = Several(*map(Recurrent, (nn.LSTM, nn.GRU, nn.RNN))).eval()
    _export(model, torch.randn(16, 12, 8), TIME, tmp_path / "m.onnx")
    for shape in ((3, 20, 8), (1, 5, 8)):
        assert min(_sqnrs(model, tmp_path / "m.onnx", shape)) > 25


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = kind(8, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.cell(x)[0])


def _export(model: nn.Module, data: Tensor, dynamic: dict[int, str], path: Path) -> Verification:
    dims = {"x": {0: "batch", **dynamic}}
    return qtool.quantize(model, [data], accuracy="fast", dynamic=dims).export(path)


def _session(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def _sqnrs(model: nn.Module, path: Path, shape: tuple[int, ...]) -> list[float]:
    """The decibels of each output."""
    x = 0.75 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    actual = _session(path).run(None, {"x": x.numpy()})
    with torch.no_grad():
        expected = [y.numpy() for y in pytree.tree_leaves(model(x))]
    assert [y.shape for y in actual] == [y.shape for y in expected]
    decibels = map(sqnr, expected, actual)
    return [float("inf") if value is None else value for value in decibels]


def test_a_kernel_of_the_samples_sizes_is_fixed_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A writer that takes the sizes of the sample for constants."""

    def constant_windows(x: Any, sizes: Any) -> Any:
        return op.AveragePool(x, kernel_shape=[4, 6], strides=[4, 6])

    monkeypatch.setitem(WRITERS, torch_ops.adaptive_average_pool, constant_windows)
    model = Net(BODIES["average"]).eval()
    _export(model, torch.randn(16, 3, 32, 48), IMAGE, tmp_path / "m.onnx")
    assert _session(tmp_path / "m.onnx").get_inputs()[0].shape == ["batch", 3, 32, 48]
    assert _sqnrs(model, tmp_path / "m.onnx", (3, 3, 32, 48))[0] > 30
    (first, *_) = [m for m in caplog.messages if "is fixed" in m]
    assert first.startswith("warning: dimension 2 (height) of input 'x' is fixed to 32 in the file")


def test_a_batch_alone_is_no_other_size(tmp_path: Path) -> None:
    model = Net(BODIES["average"]).eval()
    result = _export(model, torch.randn(16, 3, 32, 48), {}, tmp_path / "m.onnx")
    assert result.other_sizes == ()


def test_samples_for_the_estimate_measure_other_sizes_too(tmp_path: Path) -> None:
    """Batches of one sample, of which the check runs the first."""
    data = [torch.randn(1, 3, 32, 48) for _ in range(40)]
    model, dims = Net(BODIES["average"]).eval(), {"x": {0: "batch", **IMAGE}}
    quantized = qtool.quantize(model, data, dynamic=dims, accuracy="fast")
    checks = quantized.export(tmp_path / "m.onnx").other_sizes
    assert [check.samples for check in checks] == [8, 8]
    assert str(checks[0]).endswith(" dB of 8 samples")
    for check in checks:
        shape = (64, 3, *check.sizes.values())
        (own,) = _sqnrs(model, tmp_path / "m.onnx", shape)
        assert check.sqnr_db == pytest.approx(own, abs=3)


def test_an_output_of_classes_has_no_sqnr_at_other_sizes(tmp_path: Path) -> None:
    model = Net(lambda m, _, d: m.head(d).argmax(1)).eval()
    dims = {"x": {0: "batch", **IMAGE}}
    quantized = qtool.quantize(model, [torch.randn(16, 3, 32, 48)], dynamic=dims, accuracy="fast")
    checks = quantized.export(tmp_path / "m.onnx").other_sizes
    assert [str(check) for check in checks] == [
        *("height 16, width 36: the same shapes", "height 48, width 60: the same shapes")
    ]


def test_a_file_that_was_run_at_one_size_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size_parity, "at_other_sizes", lambda *_: [])
    model = Net(BODIES["pad"]).eval()
    notes = _export(model, torch.randn(16, 3, 32, 48), IMAGE, tmp_path / "m.onnx").notes
    assert any("run at one size only" in note and "height, width" in note for note in notes)
