"""Streams: factors on all that are free leave the function as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import qtool
from qtool.algorithms.cross_layer_equalization.channel_streams import find_streams
from qtool.algorithms.cross_layer_equalization.factors import factor_limits
from qtool.algorithms.cross_layer_equalization.stream_walk import Streams
from qtool.core import graph as G

SIZE = 8
aten = torch.ops.aten


class Net(nn.Module):
    """A convolution, something between, and a convolution again."""

    def __init__(self, between: Callable[[Net, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, SIZE, 3, padding=1), nn.Conv2d(SIZE, 4, 1)
        self.twin, self.depth = nn.Conv2d(3, SIZE, 1), nn.Conv2d(SIZE, SIZE, 3, groups=SIZE)
        self.grouped = nn.Conv2d(SIZE, SIZE, 1, groups=2)
        self.up = nn.ConvTranspose2d(SIZE, SIZE, 2, 2)
        self.narrow = nn.Conv2d(SIZE // 2, SIZE, 1)
        self.norm, self.group = nn.BatchNorm2d(SIZE), nn.GroupNorm(2, SIZE)
        self.slope = nn.PReLU(SIZE)
        self.squeeze, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE * 36, SIZE)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(self, x))


def gate(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = F.relu(net.first(x))
    return y * torch.sigmoid(net.squeeze(y.mean((2, 3))))[:, :, None, None]


def shuffled(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = F.relu(net.first(x))
    n, c, h, w = y.shape
    return y.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shortcut(net: Net, x: torch.Tensor) -> torch.Tensor:
    narrow = net.first(x)[:, 2:6, ::2, ::2]
    return F.relu(F.pad(narrow, (0, 0, 0, 0, 2, 2)) + net.twin(x)[:, :, ::2, ::2])


def pools(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = F.avg_pool2d(F.max_pool2d(net.first(x), 2, padding=1), 3, 2, 1)
    return F.adaptive_avg_pool2d(y, 1)


def sizes(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = F.interpolate(net.first(x), scale_factor=2).transpose(2, 3).flip(2)
    return F.interpolate(y, scale_factor=2, mode="bilinear").mean(3, keepdim=True)


def flat(net: Net, x: torch.Tensor) -> torch.Tensor:
    return F.relu(net.head(F.relu(net.first(x)).flatten(1)))[:, :, None, None]


FREE = {
    "relu": lambda m, x: F.relu(m.first(x)),
    "slopes": lambda m, x: F.leaky_relu(m.slope(m.first(x)), 0.2),
    "pools": pools,
    "sizes": sizes,
    "add": lambda m, x: F.relu(m.first(x) + m.twin(x)),
    "concat": lambda m, x: torch.cat([m.first(x)[:, :4], F.relu(m.twin(x))[:, 4:]], 1),
    "concat of pixels": lambda m, x: torch.cat([m.first(x), m.twin(x)], 3),
    "split": lambda m, x: F.relu(m.first(x)).chunk(2, 1)[1].repeat(1, 2, 1, 1),
    "shortcut": shortcut,
    "shuffle": shuffled,
    "flatten": flat,
    "gate": gate,
    "twice": lambda m, x: 2.5 * m.first(x),
    "convolutions": lambda m, x: m.up(m.grouped(m.depth(F.relu(m.first(x))))),
    "norm": lambda m, x: m.norm(F.relu(m.first(x))),
    "group norm": lambda m, x: F.relu(m.group(m.first(x))),
}

PINNED = {
    "sigmoid": lambda m, x: torch.sigmoid(m.first(x)),
    "gelu": lambda m, x: F.gelu(m.first(x)),
    "hard swish": lambda m, x: F.hardswish(m.first(x)),
    "clamp below zero": lambda m, x: m.first(x).clamp(-1, 1),
    "product": lambda m, x: m.first(x) * m.twin(x),
    "number added": lambda m, x: m.first(x) + 1.0,
    "weights used twice": lambda m, x: m.grouped(F.relu(m.grouped(m.twin(x).abs()))),
    "softmax": lambda m, x: m.first(x).softmax(1),
}


def captured(between: Callable[[Net, torch.Tensor], torch.Tensor]) -> G.FloatGraph:
    torch.manual_seed(0)
    return qtool.capture_model(Net(between).eval(), batch()).for_target("onnxruntime")[0]


def batch() -> torch.Tensor:
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def scaled(graph: G.FloatGraph, streams: Streams) -> fx.GraphModule:
    """With a factor of its own on every stream that is free."""
    logs = torch.empty(streams.count, dtype=torch.float64).uniform_(-2, 2)
    logs[0] = 0
    module = G.clone(graph.module)
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    for slot in streams.slots:
        factor = logs.exp()[streams.tensors[slot.tensor].streams][slot.channel] ** slot.power
        old = G.tensor(module, nodes[slot.constant]).detach()
        G.set_tensor(module, nodes[slot.constant], (old.double() * factor).float())
    return module


@pytest.mark.parametrize("case", FREE)
def test_factors_of_free_streams_leave_the_function_as_it_was(case: str) -> None:
    graph = captured(FREE[case])
    streams = find_streams(graph.module)
    assert streams.count > SIZE // 2  # not all is pinned
    module = scaled(graph, streams)
    with torch.no_grad():
        before, after = graph.module(batch()), module(batch())
    assert torch.allclose(before, after, rtol=0, atol=1e-4 * float(before.abs().max()))
    weights = dict(graph.module.named_parameters())
    assert any(not torch.equal(w, weights[n]) for n, w in module.named_parameters())


@pytest.mark.parametrize("case", PINNED)
def test_what_knows_no_factor_pins_what_it_reads_and_writes(case: str) -> None:
    streams = find_streams(captured(PINNED[case]).module)
    assert not streams.tensors["last"].streams.any()
    assert not any(c.streams.any() for n, c in streams.tensors.items() if n != "relu")


def test_inputs_and_outputs_are_pinned() -> None:
    streams = find_streams(captured(FREE["relu"]).module)
    assert not streams.tensors["x"].streams.any()
    assert not streams.tensors["last"].streams.any()
    assert streams.tensors["first"].streams.all()


def test_a_sum_joins_the_streams_of_its_terms_and_no_others() -> None:
    streams = find_streams(captured(FREE["add"]).module)
    first, twin = (streams.tensors[n].streams for n in ("first", "twin"))
    assert torch.equal(first, twin)
    assert len(first.unique()) == SIZE


def test_zeros_beside_channels_begin_streams_of_their_own() -> None:
    graph = captured(lambda m, x: F.pad(m.first(x)[:, 2:6], (0, 0, 0, 0, 2, 2)))
    streams = find_streams(graph.module)
    (pad,) = (n for n in G.calls(graph.graph) if n.target is aten.constant_pad_nd.default)
    found = streams.tensors[G.name_of(pad)].streams
    assert torch.equal(found[2:6], streams.tensors["first"].streams[2:6])
    assert found.all()
    assert len(found.unique()) == SIZE


def test_a_clamp_with_an_upper_bound_is_noted() -> None:
    streams = find_streams(captured(lambda m, x: F.relu6(m.first(x))).module)
    assert [(b.source, b.high) for b in streams.bounds] == [("first", 6.0)]
    assert streams.tensors["first"].streams.all()


def test_a_clamp_of_a_tensor_without_streams_bounds_nothing() -> None:
    function = captured(lambda m, x: m.first(x).mean().clamp(0, 6) + m.first(x))
    streams = find_streams(function.module)
    assert streams.bounds == ()
    factor_limits(streams, {})
