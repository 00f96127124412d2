"""Calibration without data: inputs that bring back what BatchNorms saw, and what is said of it."""

import functools
from collections.abc import Iterable

import onnx
import onnx.parser
import pytest
import torch
from torch import nn

import qtool
from qtool.calibration import data_free
from qtool.calibration.data_free import synthesize_data
from qtool.core.errors import DataError
from qtool.frontends.onnx.onnx_module import OnnxModule


class Net(nn.Module):
    """Two norms with statistics that no random input has."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm1(self.conv1(x)))
        h = torch.relu(self.norm2(self.conv2(h)))
        return self.head(h.mean((2, 3)))


def images(seed: int, count: int = 64) -> torch.Tensor:
    """Neighbours alike, not centred, and wider in the last channel."""
    noise = torch.randn(count, 3, 10, 10, generator=torch.Generator().manual_seed(seed))
    smooth = nn.functional.avg_pool2d(noise, 3, 1, 1) * 3 + 1
    return smooth * torch.tensor([1.0, 1.0, 4.0])[:, None, None]


@functools.cache
def trained() -> nn.Module:
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        for norm in (net.norm1, net.norm2):
            norm.momentum = None  # the statistics are those of all batches
        for seed in range(4):
            net(images(seed))
    return net.eval()


@functools.cache
def captured() -> qtool.Captured:
    return qtool.capture_model(trained(), torch.zeros(2, 3, 10, 10))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_free, "SAMPLES", 32)
    monkeypatch.setattr(data_free, "LEARNING_RATE", 0.2)


def distance(batches: Iterable[torch.Tensor]) -> float:
    """Of what the norms see on these from what they saw in training, in squared widths."""
    net, seen = trained(), []

    def look(norm: nn.BatchNorm2d, args: tuple[torch.Tensor]) -> None:
        mean, var = args[0].mean((0, 2, 3)), args[0].var((0, 2, 3))
        off = (mean - norm.running_mean).square() / norm.running_var
        seen.append(float((off + (var / norm.running_var).sqrt().sub(1).square()).mean()))

    handles = [n.register_forward_pre_hook(look) for n in (net.norm1, net.norm2)]
    with torch.no_grad():
        for batch in batches:
            net(batch)
    for handle in handles:
        handle.remove()
    return sum(seen) / len(seen)


def tensors() -> list[torch.Tensor]:
    graph = captured().unfolded
    return [graph.tensors_of(b)[0] for b in synthesize_data(graph)]


def sqnr(model: qtool.QuantizedModel) -> float:
    x = images(9)
    with torch.no_grad():
        exact, found = trained()(x), model(x)
    return float(10 * torch.log10(exact.square().sum() / (exact - found).square().sum()))


def test_norms_see_what_they_saw_in_training() -> None:
    assert distance([images(9)]) < 0.05  # of other data of that kind: what can be reached
    random = [torch.randn(32, 3, 10, 10, generator=torch.Generator().manual_seed(0))]
    assert distance(tensors()) < distance(random) / 20


def test_the_same_model_gives_the_same_inputs() -> None:
    for one, other in zip(tensors(), tensors(), strict=True):
        assert torch.equal(one, other)


def test_a_model_is_quantized_without_data() -> None:
    model = qtool.quantize(captured(), None, accuracy="fast")
    random = torch.randn(32, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    assert sqnr(model) > sqnr(qtool.quantize(captured(), [random], accuracy="fast")) + 6
    (note,) = [n for n in model.notes if "without data" in n]
    assert "32 synthetic inputs" in note
    assert "2 BatchNorm layers" in note
    assert "check accuracy on real data" in note


def test_calibrating_without_data_says_so() -> None:
    found = qtool.calibrate(captured(), None)
    assert found.samples == 32
    assert "without data" in found.notes[0]
    assert "without data" in qtool.convert(captured(), found, accuracy="fast").notes[0]


def test_exported_programs_and_onnx_files_know_their_sizes() -> None:
    program = torch.export.export(trained(), (torch.zeros(4, 3, 10, 10),))
    assert "without data" in qtool.quantize(program, None, accuracy="fast").notes[0]
    network = OnnxModule(normed("N")).eval()
    assert "without data" in qtool.quantize(network, None, accuracy="fast").notes[0]


def test_an_onnx_file_of_open_sizes_is_refused() -> None:
    with pytest.raises(DataError, match="dimension 2 of input 'x' is dynamic"):
        qtool.quantize(OnnxModule(normed("N", "height")).eval(), None)


def normed(samples: str, height: str = "8") -> onnx.ModelProto:
    """A file whose BatchNorm was not folded."""
    values = {
        "w": torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0)),
        **{name: torch.linspace(1, 2, 4) for name in ("gamma", "beta", "mean", "var")},
    }
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[{samples}, 3, {height}, 8] x) => (float[{samples}, 4, h, w] y) {{
            c = Conv(x, w)
            y = BatchNormalization(c, gamma, beta, mean, var)
        }}"""
    )
    stored = [onnx.numpy_helper.from_array(t.numpy(), name) for name, t in values.items()]
    model.graph.initializer.extend(stored)
    return model


def test_what_cannot_be_known_is_refused() -> None:
    with pytest.raises(DataError, match="sizes of the model's inputs are not known"):
        qtool.quantize(trained(), None)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    with pytest.raises(DataError, match="no BatchNorm in the model"):
        qtool.quantize(qtool.capture_model(plain, torch.zeros(2, 3, 8, 8)), None)


def test_inputs_that_are_no_floats_are_refused() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(9, 4), nn.BatchNorm1d(4)
            self.layer = nn.Linear(4, 8)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.layer(self.norm(self.table(ids).mean(1)))

    words = qtool.capture_model(Words().eval(), torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(DataError, match="input 'ids' is not float"):
        qtool.quantize(words, None)


def test_norms_of_the_batch_remember_nothing() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    with pytest.raises(DataError, match="no BatchNorm"):
        qtool.quantize(qtool.capture_model(net, torch.randn(4, 3, 8, 8)), None)
