"""Shapes told in one step are those that torch finds on its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from qtool.frontends.torch.fast_shapes import _RULES, fast_shapes

LAYERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "relu of integers": lambda x: F.relu(x.long()),
    "relu6": F.relu6,
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "relu of what is transposed": lambda x: F.relu(x.transpose(1, 2)),
    "relu of what is repeated": lambda x: F.relu(x[:, :1].expand(-1, 5, -1, -1)),
    "clamp": lambda x: x.clamp(0.0, 2.0),
    "clamp by integers": lambda x: x.clamp(0, 2),
    "clamp of one side": lambda x: x.clamp(max=2),
    "clamp of integers": lambda x: x.int().clamp(0.5, 2),
    "sigmoid of what is transposed": lambda x: F.sigmoid(x.transpose(1, 2)),
    "others": lambda x: F.softplus(F.leaky_relu(F.elu(F.mish(F.silu(x))))).exp().sqrt().rsqrt(),
    "more": lambda x: torch.erf(F.hardsigmoid(-x.abs().log().tanh())),
    "relu6 of integers": lambda x: F.relu6(x.int()),
}


class Net(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], norm: nn.Module) -> None:
        super().__init__()
        self.function, self.norm = function, norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.norm(x)).reshape(x.shape[0], -1)


NORMS = {
    "as it comes": nn.BatchNorm2d(4),
    "without weights": nn.BatchNorm2d(4, affine=False),
    "of the batch": nn.BatchNorm2d(4, track_running_stats=False),
    "in float64": nn.BatchNorm2d(4).double(),
    "none": nn.Identity(),
}


def exported(
    module: nn.Module, x: torch.Tensor, sizes: tuple[dict[int, Any]] = ({0: Dim.AUTO},)
) -> list[tuple[str, str]]:
    program = torch.export.export(module, (x,), dynamic_shapes=sizes, strict=False)
    values = [(str(n.target), n.meta.get("val")) for n in program.graph.nodes]
    return [
        (t, f"{v.dtype} {tuple(v.shape)} {v.stride()}" if isinstance(v, torch.Tensor) else str(v))
        for t, v in values
    ]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_norm_has_the_shape_that_torch_finds(norm: str, layout: torch.memory_format) -> None:
    x = torch.randn(3, 4, 6, 5).to(memory_format=layout)
    net = Net(F.relu, NORMS[norm]).eval()
    expected = exported(net, x)
    with fast_shapes():
        assert exported(net, x) == expected


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_the_shape_that_torch_finds(layer: str) -> None:
    x = torch.randn(3, 4, 6, 5)
    net = Net(LAYERS[layer], nn.Identity()).eval()
    expected = exported(net, x)
    with fast_shapes():
        assert exported(net, x) == expected


CONVOLUTIONS: dict[str, nn.Module] = {
    "plain": nn.Conv2d(4, 6, 3, 2, 1),
    "of one pixel": nn.Conv2d(4, 6, 1),
    "by channel": nn.Conv2d(4, 4, 3, groups=4, dilation=2),
    "of weights by channels": nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),
    "transposed": nn.ConvTranspose2d(4, 6, 3, 2, 1, 1),
    "over lines": nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 6, 3)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolution_has_the_shape_that_torch_finds(
    name: str, layout: torch.memory_format
) -> None:
    x = torch.randn(3, 4, 16, 15).to(memory_format=layout)
    sizes = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)
    net = Net(F.relu, CONVOLUTIONS[name]).eval()
    expected = exported(net, x, sizes)
    with fast_shapes():
        assert exported(net, x, sizes) == expected


def test_what_does_not_fit_is_refused_as_before() -> None:
    x = torch.randn(3, 5, 6, 5)
    with fast_shapes(), pytest.raises(RuntimeError):
        exported(Net(F.relu, nn.BatchNorm2d(4)).eval(), x)


def test_torch_is_left_as_it_was() -> None:
    table = torch._decomp.decomposition_table
    before, cached = dict(table), torch._dynamo.config.fake_tensor_cache_enabled
    assert set(_RULES) <= set(before)
    with fast_shapes():
        assert all(table[op] is not before[op] for op in _RULES)
    assert table == before
    assert torch._dynamo.config.fake_tensor_cache_enabled is cached is True
