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


def _axis(x: torch.Tensor, axis: int) -> int:
    """An axis other than the batch."""
    return 1 + axis % (x.dim() - 1)


def _at(function: Callable[..., Any], **rest: Any) -> Op:
    """A function of a tensor and an axis other than the batch."""
    choices = {"axis": (0, 1, 2), **rest.pop("choices", {})}

    def make(shapes: Sequence[Shape], o: Options) -> Callable[..., Any]:
        others = {k: v for k, v in o.items() if k != "axis"}
        return lambda x: function(x, _axis(x, o["axis"]), **others)

    return Op(make, choices=choices, **rest)


def _reshaped(x: torch.Tensor, how: str) -> torch.Tensor:
    n, c, *rest = x.shape
    if how == "tokens":
        return x.flatten(2).transpose(1, 2)
    if how == "flat":
        return x.flatten(1)
    if how == "shuffle":
        return x.reshape(n, 2, c // 2, *rest).transpose(1, 2).reshape(n, c, *rest)
    if how == "heads":
        return x.view(n, c, 2, rest[0] // 2).permute(0, 2, 1, 3)
    if how == "map":
        return x.reshape(n, c, 2, -1)
    return x.reshape(-1, *rest) if how == "fold batch" else x.unsqueeze(1)


def _padded(x: torch.Tensor, left: int, right: int, mode: str, value: float) -> torch.Tensor:
    return (
        F.pad(x, (left, right), mode, value)
        if mode == "constant"
        else F.pad(x, (left, right), mode)
    )


def _scaled(x: torch.Tensor, factor: float, mode: str) -> torch.Tensor:
    names = {"linear": {3: "linear", 4: "bilinear", 5: "trilinear"}[x.dim()]}
    return F.interpolate(x, scale_factor=factor, mode=names.get(mode, mode))


def _sized(x: torch.Tensor, size: int, mode: str) -> torch.Tensor:
    names = {"linear": {3: "linear", 4: "bilinear", 5: "trilinear"}[x.dim()]}
    return F.interpolate(x, size=(size,) * (x.dim() - 2), mode=names.get(mode, mode))


def _attend(x: torch.Tensor, causal: bool) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x, is_causal=causal)


def _shared(x: torch.Tensor, mask: str) -> torch.Tensor:
    """Four heads of queries over two of keys and values, copied as transformers does."""
    query, few = torch.stack([x, -x, x * 2, x + 1], 1), torch.stack([x, x * 0.5], 1)
    every = few[:, :, None].expand(-1, -1, 2, -1, -1).reshape(query.shape)
    masks = {
        "none": None,
        "flags": torch.ones(x.shape[1], x.shape[1]).tril().bool(),
        "chosen": torch.where(x[:, None, :, :1] > 0, 0.0, -4.0).transpose(2, 3),
        "computed": (x @ x.transpose(1, 2))[:, None].clamp(-8, 8),
    }
    return F.scaled_dot_product_attention(query, every, every, masks[mask])


def _pool(name: str, choices: Mapping[str, Sequence[Any]]) -> Op:
    return _module(layers.by_rank(name), choices=choices)


_ACTIVATIONS = {
    name: _module(getattr(nn, name))
    for name in [
        *("ReLU", "ReLU6", "GELU", "SiLU", "Sigmoid", "Tanh", "Hardswish", "Hardsigmoid"),
        *("Hardtanh", "LeakyReLU", "ELU", "SELU", "CELU", "Softplus", "Softsign", "Mish"),
        *("LogSigmoid", "Identity", "Dropout", "Hardshrink", "Softshrink", "Tanhshrink"),
    ]
}
_PLAIN = {
    name: _function(getattr(torch, name))
    for name in [
        *("abs", "neg", "exp", "sin", "cos", "floor", "ceil", "round", "square", "sign", "erf"),
        *("relu", "sigmoid", "tanh"),
    ]
}
_PAIRS = {
    name: _function(getattr(torch, name), arity=2, alike=True)
    for name in ["add", "sub", "mul", "maximum", "minimum"]
}
_WINDOW = {
    "kernel_size": (2, 3, 1),
    "stride": (1, 2, 3),
    "padding": (0, 1),
    "ceil_mode": (False, True),
}
_SCALE = {"mode": ("nearest", "linear", "nearest-exact")}

OPS: dict[str, Op] = {
    "conv": layers.conv(False),
    "conv transposed": layers.conv(True),
    "linear": Op(layers.linear, choices={"out": (4, 1, 3, 8, 16), "bias": (True, False)}),
    **{
        f"{kind} norm": layers.norm(kind) for kind in ("batch", "layer", "group", "instance", "rms")
    },
    "recurrent": Op(
        layers.recurrent,
        (3,),
        choices={
            "kind": ("LSTM", "GRU", "RNN"),
            "hidden": (3, 4, 8),
            "layers": (1, 2),
            "both": (False, True),
            "bias": (True, False),
        },
    ),
    "attention": Op(layers.attention, (3,), choices={"heads": ("one", "some")}),
    "transformer": Op(
        layers.transformer, (3,), choices={"activation": ("relu", "gelu"), "first": (False, True)}
    ),
    "attend": _function(_attend, ranks=(3, 4), choices={"causal": (False, True)}),
    "attend in groups": _function(
        _shared, ranks=(3,), choices={"mask": ("none", "flags", "chosen", "computed")}
    ),
    "times": Op(
        lambda s, o: layers.Times(s[0], o["how"]), choices={"how": ("channel", "scalar", "whole")}
    ),
    "plus": Op(
        lambda s, o: layers.Plus(s[0], o["how"]), choices={"how": ("channel", "scalar", "whole")}
    ),
    "look up": Op(
        layers.looked_up,
        (2, 3),
        dtype="ids",
        choices={"width": (4, 3, 8), "pad": (False, True), "bag": ("", "", "mean", "sum", "max")},
    ),
    "prelu": Op(
        lambda s, o: nn.PReLU(s[0][1] if o["each"] else 1), choices={"each": (False, True)}
    ),
    **_ACTIVATIONS,
    **_PLAIN,
    **_PAIRS,
    "max pool": _pool("MaxPool", {**_WINDOW, "dilation": (1, 2)}),
    "average pool": _pool("AvgPool", {**_WINDOW, "count_include_pad": (True, False)}),
    "adaptive max": _pool("AdaptiveMaxPool", {"output_size": (1, 2, 3)}),
    "adaptive average": _pool("AdaptiveAvgPool", {"output_size": (1, 2, 3)}),
    "lp pool": _module(
        {3: nn.LPPool1d, 4: nn.LPPool2d}, choices={"norm_type": (2,), "kernel_size": (2,)}
    ),
    "mean": _at(lambda x, axis, keep: x.mean(axis, keepdim=keep), choices={"keep": (True, False)}),
    "sum": _at(lambda x, axis, keep: x.sum(axis, keepdim=keep), choices={"keep": (True, False)}),
    "amax": _at(lambda x, axis, keep: x.amax(axis, keepdim=keep), choices={"keep": (True, False)}),
    "norm of": _at(lambda x, axis: F.normalize(x, dim=axis)),
    "std": _at(lambda x, axis: x.std(axis, keepdim=True)),
    "softmax": _at(lambda x, axis: x.softmax(axis)),
    "log softmax": _at(lambda x, axis: x.log_softmax(axis)),
    "cumsum": _at(lambda x, axis: x.cumsum(axis)),
    "top": _at(lambda x, axis: x.topk(1, axis)[0]),
    "argmax": _at(lambda x, axis: x.argmax(axis)),
    "sort": _at(lambda x, axis: x.sort(axis)[0]),
    "cat": Op(
        lambda s, o: lambda a, b: torch.cat([a, b], _axis(a, o["axis"])),
        arity=2,
        choices={"axis": (0, 1, 2)},
    ),
    "cat itself": _at(lambda x, axis: torch.cat([x, x * 2, x], axis)),
    "cat of one": _at(lambda x, axis: torch.cat([x], axis)),
    "stack": Op(
        lambda s, o: lambda a, b: torch.stack([a, b], 1), ranks=(2, 3, 4), arity=2, alike=True
    ),
    "split": _at(lambda x, axis: torch.split(x, -(-x.shape[axis] // 2), axis)),
    "chunk": _at(lambda x, axis: x.chunk(3, axis)),
    "narrow": _at(
        lambda x, axis, step: x.narrow(axis, 1, x.shape[axis] - 1).index_select(
            axis, torch.arange(0, x.shape[axis] - 1, step)
        ),
        choices={"step": (1, 2)},
    ),
    "slice": _function(
        lambda x, start, step: x[:, start::step], choices={"start": (0, 1, -1), "step": (1, 2)}
    ),
    "flip": _at(lambda x, axis: x.flip(axis)),
    "roll": _at(lambda x, axis: x.roll(1, axis)),
    "repeat": _at(lambda x, axis: x.repeat_interleave(2, axis)),
    "tile": _function(lambda x: x.repeat(1, 2, *[1] * (x.dim() - 2))),
    "expand": _function(lambda x: x.unsqueeze(1).expand(-1, 2, *x.shape[1:]), ranks=(2, 3, 4)),
    "transpose": _function(lambda x: x.transpose(1, -1), ranks=MAPS),
    "squeeze": _function(lambda x, axis: x.squeeze(axis), ranks=MAPS, choices={"axis": (1, -1)}),
    "select": _function(lambda x, index: x[:, index], ranks=MAPS, choices={"index": (0, -1)}),
    "reshape": _function(
        _reshaped,
        choices={"how": ("flat", "tokens", "shuffle", "heads", "map", "fold batch", "more")},
    ),
    "pad": _function(
        _padded,
        choices={
            "left": (1, 0, 2),
            "right": (0, 1, -1),
            "mode": ("constant",) * 3 + ("reflect", "replicate", "circular"),
            "value": (0.0, 0.5, -1.0),
        },
    ),
    "shuffle up": _function(lambda x: F.pixel_shuffle(x, 2), ranks=(4,)),
    "shuffle down": _function(lambda x: F.pixel_unshuffle(x, 2), ranks=(4,)),
    "unfold": _function(lambda x: F.unfold(x, 2), ranks=(4,)),
    "scale": _function(_scaled, ranks=MAPS, choices={"factor": (2, 1.5, 0.5, 3), **_SCALE}),
    "size": _function(_sized, ranks=MAPS, choices={"size": (7, 3, 10), **_SCALE}),
    "clamp": _function(torch.clamp, choices={"min": (0.0, -1.0, None), "max": (6.0, 1.0, 0.5)}),
    "power": _function(lambda x, to: x.abs().pow(to), choices={"to": (2, 0.5, 3.0)}),
    "root": _function(lambda x: (x.abs() + 0.1).rsqrt()),
    "log": _function(lambda x: x.abs().log1p()),
    "affine": _function(
        lambda x, by, to: x * by + to, choices={"by": (2.0, 0.5, -1.0, 0.1), "to": (0.0, 1.0, -3.0)}
    ),
    "divide": _function(lambda x, by: x / by, choices={"by": (2.0, -3.0, 255.0)}),
    "ratio": _function(lambda a, b: a / (b.abs() + 0.5), arity=2, alike=True),
    "where": _function(lambda a, b: torch.where(a > 0, a, b), arity=2, alike=True),
    "mask": _function(lambda x: x.masked_fill(x > 1, 0.25)),
    "above": _function(lambda x: x > 0.1),
    "to int": _function(lambda x: (x * 4).int()),
    "double": _function(lambda x: (x.double() + 1).float()),
    "product": _function(lambda a, b: a @ b.transpose(-1, -2), ranks=(3, 4), arity=2, alike=True),
    "einsum": _function(
        lambda a, b: torch.einsum("nij,nkj->nik", a, b), ranks=(3,), arity=2, alike=True
    ),
    "gate": _function(lambda x: F.glu(x, 1)),
    "gather": _function(lambda x: x[:, torch.tensor([0, -1, 0])]),
    "in place": _function(lambda x: x.clone().add_(1).relu_()),
    "of its shape": _function(lambda x: x / x.shape[1] + x.shape[-1]),
    "norm by hand": _function(
        lambda x: (
            (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        )
    ),
    "means of batch": _function(lambda x: x - x.mean(0, keepdim=True)),
}
