"""The operations of random networks that have weights, and what all operations have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Shape = tuple[int, ...]
Options = Mapping[str, Any]
ANY = (2, 3, 4, 5)
MAPS = (3, 4, 5)


@dataclass(frozen=True)
class Op:
    """An operation.

    make: (shapes of the inputs, options) -> what is called with the tensors; a module has weights.
    ranks: of its first input. arity: number of inputs. choices: of each option.
    dtype: "float", or "ids" for what looks numbers up. alike: all inputs have one shape.
    """

    make: Callable[[Sequence[Shape], Options], Callable[..., Any]]
    ranks: tuple[int, ...] = ANY
    arity: int = 1
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    dtype: str = "float"
    alike: bool = False


def by_rank(name: str) -> dict[int, Any]:
    return {rank: getattr(nn, f"{name}{rank - 2}d") for rank in MAPS}


def divided(channels: int, out: int, which: str) -> tuple[int, int]:
    """Groups and output channels that fit."""
    if which == "one":
        return 1, out
    groups = channels if which == "all" else next((g for g in (2, 3, 5) if channels % g == 0), 1)
    return groups, groups * max(1, out // groups)


def conv(transposed: bool) -> Op:
    kinds = by_rank("ConvTranspose" if transposed else "Conv")

    def make(shapes: Sequence[Shape], o: Options) -> nn.Module:
        rank = len(shapes[0]) - 2
        groups, out = divided(shapes[0][1], o["out"], o["groups"])
        kernel = (o["kernel"], *[o["kernel"]] * (rank - 1)) if o["square"] else (1, 3, 2)[:rank]
        rest = {} if transposed else {"padding_mode": o["mode"], "dilation": o["dilation"]}
        padding = o["padding"] if not (transposed and isinstance(o["padding"], str)) else 0
        return kinds[rank + 2](
            shapes[0][1],
            out,
            kernel,
            stride=o["stride"],
            padding=padding,
            groups=groups,
            bias=o["bias"],
            **rest,
        )

    choices = {
        "out": (4, 1, 3, 8, 16),
        "kernel": (1, 3, 2, 5),
        "square": (True, True, False),
        "stride": (1, 1, 2, 3),
        "padding": (0, 1, 2, "same"),
        "groups": ("one", "one", "all", "some"),
        "bias": (True, False),
        "dilation": (1, 1, 2),
        "mode": ("zeros",) * 4 + ("reflect", "circular", "replicate"),
    }
    return Op(make, MAPS, choices=choices)


def linear(shapes: Sequence[Shape], o: Options) -> nn.Module:
    return nn.Linear(shapes[0][-1], o["out"], bias=o["bias"])


def norm(kind: str) -> Op:
    def make(shapes: Sequence[Shape], o: Options) -> nn.Module:
        shape, rank = shapes[0], len(shapes[0])
        if kind == "layer":
            return nn.LayerNorm(
                list(shape[-min(o["last"], rank - 1) :]), eps=o["eps"], bias=o["affine"]
            )
        if kind == "group":
            return nn.GroupNorm(divided(shape[1], 1, "some")[0], shape[1], affine=o["affine"])
        if kind == "rms":
            return nn.RMSNorm(shape[-1])
        names = {"batch": "BatchNorm", "instance": "InstanceNorm"}
        which = 1 if rank == 2 else rank - 2
        return getattr(nn, f"{names[kind]}{which}d")(shape[1], affine=o["affine"])

    ranks = MAPS if kind == "instance" else ANY
    choices = {"affine": (True, False)} if kind in ("batch", "instance", "group", "layer") else {}
    if kind == "layer":
        choices |= {"last": (1, 2), "eps": (1e-5, 1e-12)}
    return Op(make, ranks, choices=choices)


def recurrent(shapes: Sequence[Shape], o: Options) -> nn.Module:
    kind = getattr(nn, o["kind"])
    return _First(
        kind(
            shapes[0][-1],
            o["hidden"],
            num_layers=o["layers"],
            bidirectional=o["both"],
            batch_first=True,
            bias=o["bias"],
        )
    )


class _First(nn.Module):
    """The first result of a module that gives several."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        return self.inner(*x)[0]


class _Attention(nn.Module):
    """torch's own multi-head attention, of a tensor with itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


def attention(shapes: Sequence[Shape], o: Options) -> nn.Module:
    return _Attention(shapes[0][-1], divided(shapes[0][-1], 1, o["heads"])[0])


def transformer(shapes: Sequence[Shape], o: Options) -> nn.Module:
    heads = divided(shapes[0][-1], 1, "some")[0]
    return nn.TransformerEncoderLayer(
        shapes[0][-1],
        heads,
        16,
        activation=o["activation"],
        batch_first=True,
        norm_first=o["first"],
    )


class Times(nn.Module):
    """A parameter, in a form that broadcasts."""

    def __init__(self, shape: Shape, how: str) -> None:
        super().__init__()
        sizes = [1] * (len(shape) - 1) if how == "channel" else list(shape[1:])
        if how == "channel" and sizes:
            sizes[0] = shape[1]
        self.scale = nn.Parameter(torch.randn(sizes if how != "scalar" else []))
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Plus(Times):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale + x


def looked_up(shapes: Sequence[Shape], o: Options) -> nn.Module:
    table = nn.Embedding(7, o["width"], padding_idx=0 if o["pad"] else None)
    return (
        table
        if not o["bag"] or len(shapes[0]) != 2
        else nn.EmbeddingBag(7, o["width"], mode=o["bag"])
    )
