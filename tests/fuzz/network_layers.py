"""The operations of random networks that have weights, and what all operations have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

Shape = tuple[int, ...]
Options = Mapping[str, Any]
ANY = (2, 3, 4, 5)
MAPS = (3, 4, 5)


@dataclass(frozen=True)
class Op:
    """An operation.

    make: (shapes of the inputs, options) -> what is called with the tensors; a module has weights.
    ranks: of its first input. arity: number of inputs, all of one shape. choices: of each option.
    dtype: "float", or "ids" for what looks numbers up.
    """

    make: Callable[[Sequence[Shape], Options], Callable[..., Any]]
    ranks: tuple[int, ...] = ANY
    arity: int = 1
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    dtype: str = "float"


def by_rank(name: str) -> dict[int, Any]:
    return {rank: getattr(nn, f"{name}{rank - 2}d") for rank in MAPS}


def divided(channels: int, out: int, which: str) -> tuple[int, int]:
    """Groups and output channels that fit."""
    if which == "one":
        return 1, out
    groups = channels if which == "all" else next((g for g in (2, 3, 5) if channels % g == 0), 1)
    return groups, groups * max(1, out // groups)


def conv() -> Op:
    kinds = by_rank("Conv")

    def make(shapes: Sequence[Shape], o: Options) -> nn.Module:
        rank = len(shapes[0]) - 2
        groups, out = divided(shapes[0][1], o["out"], o["groups"])
        kernel = (o["kernel"], *[o["kernel"]] * (rank - 1)) if o["square"] else (1, 3, 2)[:rank]
        return kinds[rank + 2](
            shapes[0][1],
            out,
            kernel,
            stride=o["stride"],
            padding=o["padding"],
            groups=groups,
            bias=o["bias"],
            padding_mode=o["mode"],
            dilation=o["dilation"],
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
            return nn.LayerNorm(shape[-1])
        if kind == "group":
            return nn.GroupNorm(divided(shape[1], 1, "some")[0], shape[1], affine=o["affine"])
        which = 1 if rank == 2 else rank - 2
        return getattr(nn, f"BatchNorm{which}d")(shape[1], affine=o["affine"])

    return Op(make, choices={} if kind == "layer" else {"affine": (True, False)})


def looked_up(shapes: Sequence[Shape], o: Options) -> nn.Module:
    if o["bag"]:
        return nn.EmbeddingBag(7, o["width"], mode=o["bag"])
    return nn.Embedding(7, o["width"], padding_idx=0 if o["pad"] else None)
