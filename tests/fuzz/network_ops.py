"""What random networks are made of: one row per operation of torch.

Options are drawn from short lists; what torch refuses for a shape is drawn again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.fuzz import network_layers as layers
from tests.fuzz.network_layers import ANY, MAPS, Op, Options, Shape


def _function(function: Callable[..., Any], **rest: Any) -> Op:
    """A function of the tensors and of options by name."""
    return Op(lambda shapes, o: lambda *given: function(*given, **o), **rest)


def _module(kinds: Mapping[int, Any] | Any, **rest: Any) -> Op:
    """A module of torch.nn without weights, one for each rank; options are its arguments."""

    def make(shapes: Sequence[Shape], o: Options) -> nn.Module:
        kind = kinds[len(shapes[0])] if isinstance(kinds, dict) else kinds
        return kind(**o)

    return Op(make, tuple(kinds) if isinstance(kinds, dict) else ANY, **rest)


def _pool(name: str, choices: Mapping[str, Sequence[Any]]) -> Op:
    return _module(layers.by_rank(name), choices=choices)


_ACTIVATIONS = {
    name: _module(getattr(nn, name))
    for name in [
        *("ReLU", "ReLU6", "GELU", "SiLU", "Sigmoid", "Tanh", "Hardswish", "Hardtanh"),
        *("LeakyReLU", "ELU", "SELU", "CELU", "LogSigmoid", "Identity", "Softshrink"),
    ]
}
_PAIRS = {
    name: _function(getattr(torch, name), arity=2) for name in ["add", "sub", "mul", "maximum"]
}
_WINDOW = {
    "kernel_size": (2, 3, 1),
    "stride": (1, 2, 3),
    "padding": (0, 1),
    "ceil_mode": (False, True),
}

OPS: dict[str, Op] = {
    "conv": layers.conv(),
    "linear": Op(layers.linear, choices={"out": (4, 1, 3, 8, 16), "bias": (True, False)}),
    **{f"{kind} norm": layers.norm(kind) for kind in ("batch", "layer", "group")},
    "look up": Op(layers.looked_up, (2, 3), dtype="ids"),
    **_ACTIVATIONS,
    **_PAIRS,
    "max pool": _pool("MaxPool", {**_WINDOW, "dilation": (1, 2)}),
    "average pool": _pool("AvgPool", {**_WINDOW, "count_include_pad": (True, False)}),
    "adaptive max": _pool("AdaptiveMaxPool", {"output_size": (1, 2, 3)}),
    "adaptive average": _pool("AdaptiveAvgPool", {"output_size": (1, 2, 3)}),
    "mean": _function(lambda x: x.mean(1, keepdim=True)),
    "softmax": _function(lambda x: x.softmax(1)),
    "cat": _function(lambda a, b: torch.cat([a, b], 1), arity=2),
    "chunk": _function(lambda x: x.chunk(3, 1)),
    "flatten": _function(lambda x: x.flatten(1), ranks=MAPS),
    "tokens": _function(lambda x: x.flatten(2).transpose(1, 2), ranks=MAPS),
    "scale": _function(
        lambda x, factor: F.interpolate(x, scale_factor=factor),
        ranks=MAPS,
        choices={"factor": (2, 0.5)},
    ),
    "product": _function(lambda a, b: a @ b.transpose(-1, -2), ranks=(3, 4), arity=2),
}
