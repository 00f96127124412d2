"""Calibration data: read ahead, warned about, changed by the network."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot
from torch.utils._pytree import tree_leaves

import qtool
from qtool.api.conversion import calibrate
from qtool.calibration.collect import use_in_place_operators
from qtool.calibration.data_warnings import DataWarnings
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph.devices import prefetch
from qtool.core.random_inputs import Input
from tests.backends.onnx.export.networks import Residual

INPUTS = (Input("x", "float32", ("batch", 4)), Input("ids", "int64", ("batch", 4)))


def warnings(x: torch.Tensor) -> list[str]:
    found = DataWarnings(INPUTS)
    for rows in x.split(16):
        found.add([rows, torch.ones(len(rows), 4, dtype=torch.int64)])
    return [w for w in found.warnings(100) if "reaches" in w]


def test_batch_and_row_of_an_extreme_sample_are_named() -> None:
    x = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
    assert warnings(x) == []
    x[37, 2] = -5000
    (text,) = warnings(x)
    assert "input 'x' reaches 5e+03 in batch 2, row 5, " in text
    assert "in the median sample" in text


def test_data_that_is_wide_everywhere_is_not_named() -> None:
    x = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
    x[::8] *= 1000  # one in eight samples
    assert warnings(x) == []


def batches() -> list[Batch]:
    return [Batch((torch.full((4, 3), float(i)),), {"n": i}) for i in range(5)]


def test_on_the_cpu_a_batch_is_read_when_it_is_asked_for() -> None:
    source = iter(batches())
    batch, moved = next(prefetch(source, torch.device("cpu")))
    assert (batch.kwargs["n"], moved.args[0] is batch.args[0]) == (0, True)
    assert next(source).kwargs["n"] == 1


@pytest.mark.cuda
def test_on_a_gpu_all_are_there() -> None:
    found = list(prefetch(batches(), torch.device("cuda")))
    for i, (batch, moved) in enumerate(found):
        assert moved.args[0].is_cuda
        assert (batch.kwargs["n"], moved.kwargs["n"]) == (i, i)
        assert (moved.args[0].cpu() == i).all()


@pytest.mark.cuda
def test_a_model_on_a_gpu_sees_what_it_sees_with_data_that_is_there() -> None:
    torch.manual_seed(0)
    model, data = Residual().eval().cuda(), [torch.randn(8, 4, 8, 8) for _ in range(6)]
    here = calibrate(copy.deepcopy(model), data)
    there = calibrate(copy.deepcopy(model), [x.cuda() for x in data])
    assert here.to_bytes() == there.to_bytes()


aten = torch.ops.aten
Body = Callable[[nn.Module, torch.Tensor], object]


class Net(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.narrow, self.body = nn.Conv2d(3, 1, 1), body

    def forward(self, x: torch.Tensor) -> object:
        return self.body(self, x)


def _residual(net: nn.Module, x: torch.Tensor) -> object:
    y = net.first(x).relu()
    return (net.second(y) + y).relu()


CASES: dict[str, tuple[Body, int]] = {  # with how many calls in place
    "residual": (_residual, 3),
    "a clamp and a leaky relu": (
        lambda net, x: nn.functional.leaky_relu(net.second(nn.functional.relu6(net.first(x)))),
        2,
    ),
    "the input of the network": (lambda net, x: net.first(x.relu()), 0),
    "read again later": (lambda net, x: (y := net.first(x)).relu() + net.second(y), 0),
    "returned as well": (lambda net, x: ((y := net.first(x)), y.relu()), 0),
    "a view of it is read": (lambda net, x: (y := net.first(x)).relu() + y.flip(1).mT.mT, 0),
    "added to itself": (lambda net, x: (y := net.first(x)) + y, 1),
    "a sum that is wider": (lambda net, x: net.narrow(x) + net.second(x), 0),
    "a weight": (lambda net, x: net.first(x) * net.second.bias.relu()[:, None, None], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_the_same_and_calls_counted(name: str) -> None:
    body, expected = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    captured = qtool.capture_model(Net(body).eval(), x)
    graph, _ = captured.for_target("onnxruntime")
    module = G.clone(graph.module)
    use_in_place_operators(module)
    done = [n for n in G.calls(module.graph) if str(n.target).split(".")[-2].endswith("_")]
    assert len(done) == expected
    given = x.clone()
    with torch.inference_mode():
        for _ in range(2):  # twice: what it keeps must not change either
            found, wanted = module(given), graph.module(x)
            pairs = zip(*map(tree_leaves, (found, wanted)), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(given, x)


SAMPLES = 64


def warnings_of(**inputs: torch.Tensor) -> list[str]:
    """The warnings on a batch of each half of the samples."""
    ports = [
        Input(name, str(t.dtype).removeprefix("torch."), ("n", *t.shape[1:]))
        for name, t in inputs.items()
    ]
    collected = DataWarnings(ports)
    for batch in zip(*(t.chunk(2) for t in inputs.values()), strict=True):
        collected.add(batch)
    return list(collected.warnings(SAMPLES))


def drawn(*sizes: int) -> torch.Tensor:
    """Values of 0 to 1, of which some are 1, as of an image."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(SAMPLES, *sizes, generator=generator).mul(1.01).clamp(max=1)


IMAGE = drawn(3, 8, 8)
ROUNDED_OFF = {
    "bytes": IMAGE.to(torch.uint8),
    "channels last": IMAGE.to(torch.uint8).permute(0, 2, 3, 1),
    "gray": IMAGE[:, :1].to(torch.int8),
    "of -1 to 1": (IMAGE * 2.02 - 1.01).clamp(-1, 1).to(torch.int32),
    "bytes of -1 to 1": (IMAGE * 2.02 - 1.01).clamp(-1, 1).to(torch.int8).view(torch.uint8),
    "zeros": torch.zeros(SAMPLES, 3, 8, 8, dtype=torch.uint8),
}


@pytest.mark.parametrize("image", ROUNDED_OFF.values(), ids=ROUNDED_OFF)
def test_an_image_whose_fractions_are_lost(image: torch.Tensor) -> None:
    own = [w for w in warnings_of(x=image, other=drawn(4)) if "their fractions are lost" in w]
    assert len(own) == 1
    assert "% of the values of input 'x' are 0" in own[0]


def marked(channels: int, value: int = 1) -> torch.Tensor:
    """Images of zeros but for two pixels each."""
    image = torch.zeros(SAMPLES, channels, 16, 16, dtype=torch.uint8)
    image[:, :, 2, 3:5] = (drawn(channels, 2) * value).to(torch.uint8)
    return image


IDS = (drawn(32) * 99).long() * (torch.arange(32) < 3)
INTEGERS: dict[str, dict[str, torch.Tensor]] = {
    "bytes": {"x": (IMAGE * 255).to(torch.uint8)},
    "digits on black": {"x": marked(1, 200)},
    "digits, then black": {
        "x": torch.cat([marked(1, 200)[:1].repeat(2, 1, 1, 1), *[marked(1)] * 9])[:SAMPLES]
    },
    "token ids and their mask": {"ids": IDS, "mask": (IDS > 0).long()},
    "an image and its mask": {"x": IMAGE, "mask": marked(1)},
    "bytes and their mask": {"x": (IMAGE * 255).to(torch.uint8), "mask": marked(1)},
    "one of four classes": {"x": one_hot((drawn(8, 8) * 3.9).long(), 4).to(torch.uint8)},
    "one of many classes": {"x": one_hot((drawn(20) * 90).long(), 99)},
    "planes of a board": {"x": marked(12)},
    "a table of counts": {"x": (drawn(300) - 0.98).clamp(min=0).mul(99).long()},
    "black and white": {"x": (drawn(3, 8, 8) > 0.97).to(torch.uint8) * 255},
}


@pytest.mark.parametrize("inputs", INTEGERS.values(), ids=INTEGERS)
def test_other_integers(inputs: dict[str, torch.Tensor]) -> None:
    assert not [w for w in warnings_of(**inputs) if "fractions" in w]


def test_bytes_are_no_mistake_where_the_network_normalizes_them() -> None:
    first = torch.nn.BatchNorm2d(3)
    first.running_mean += 100
    first.running_var += 4000
    images = [255 * torch.rand(8, 3, 8, 8) for _ in range(2)]
    for norm, warned in ((first, False), (torch.nn.Identity(), True)):
        net = torch.nn.Sequential(norm, torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten()).eval()
        notes = qtool.calibrate(net, images, accuracy="fast").notes
        assert any("divided by 255" in note for note in notes) == warned
