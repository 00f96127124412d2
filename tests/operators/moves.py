"""Operators that move elements."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from tests.operators.case import Case, conv, image, whole

NONE = "no integer kernel on onnxruntime"
HEAD = {"c": lambda: nn.Conv2d(4, 8, 1), "head": lambda: nn.Linear(512, 3)}
ROWS = {"c": lambda: nn.Conv2d(4, 8, 1), "head": lambda: nn.Linear(64, 3)}
SMALL = {"c": lambda: nn.Conv2d(4, 8, 1), "head": lambda: nn.Linear(8, 3)}
IMAGE = (4, 4, 8, 8)


def shuffled(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


MOVES: Mapping[str, Case] = {
    "cat": image(
        lambda m, x: torch.cat([x, m.other(x)], 1),
        "QLinearConv QLinearConcat",
        channels=16,
        other=conv(),
    ),
    "concat": image(lambda m, x: torch.concat([x, x], dim=-1), "QLinearConcat"),
    "stack": image(
        lambda m, x: torch.stack([x, m.other(x)], 1).flatten(1, 2),
        "QLinearConv QLinearConcat",
        channels=16,
        other=conv(),
    ),
    "split": image(lambda m, x: torch.cat(x.split([2, 6], 1)[::-1], 1), "Split QLinearConcat"),
    "chunk": image(lambda m, x: torch.add(*x.chunk(2, 1)), "Split QLinearAdd", channels=4),
    "slice": image(lambda m, x: x[:, ::2, 1:-1], channels=4),
    "unbind": image(
        lambda m, x: torch.stack(x.unbind(1)[:4], 1),
        "Gather Gather Gather Gather QLinearConcat",
        channels=4,
    ),
    "indices": image(lambda m, x: x[:, torch.tensor([0, 3, 5, 1])], "Gather", channels=4),
    "flip": image(lambda m, x: x.flip(3)),
    "roll": image(lambda m, x: x.roll((2, -1), (3, 2)), "Split QLinearConcat Split QLinearConcat"),
    "hstack": image(lambda m, x: torch.hstack([x, x]), "QLinearConcat", channels=16),
    "fliplr": image(lambda m, x: x.fliplr()),
    "flipud": image(lambda m, x: x.flatten(0, 1).flipud().unflatten(0, (-1, 8))),
    "rot90": image(lambda m, x: x.rot90(1, (2, 3))),
    "rot90_back": image(lambda m, x: x.rot90(-1, (2, 3))),
    "rot180": image(lambda m, x: x.rot90(2, (2, 3))),
    "shuffle": image(shuffled, "Gather"),
    "shuffle_module": image(lambda m, x: m.mix(x), "Gather", mix=lambda: nn.ChannelShuffle(2)),
    "transpose": image(lambda m, x: x.transpose(2, 3)),
    "permute": image(lambda m, x: x.permute(0, 1, 3, 2)),
    "expand": image(lambda m, x: x[:, :1].expand(-1, 8, -1, -1), "Expand"),
    "repeat": image(lambda m, x: x.repeat(1, 2, 1, 1), "Tile", channels=16),
    "unsqueeze": image(lambda m, x: x.unsqueeze(1).squeeze(1)),
    "unflatten": image(lambda m, x: x.unflatten(1, (2, 4)).flatten(1, 2)),
    "pixel_shuffle": image(lambda m, x: F.pixel_shuffle(x, 2), "DepthToSpace", channels=2),
    "pixel_unshuffle": image(lambda m, x: F.pixel_unshuffle(x, 2), channels=32),
    "unfold": image(
        lambda m, x: F.unfold(x, 2, stride=2).unflatten(2, (4, 4)),
        "Gather Gather",
        {"im2col.default": NONE},
        channels=32,
    ),
    "pad": image(lambda m, x: F.pad(x, (1, 2, 0, 1))),
    "pad_negative": image(lambda m, x: F.pad(x, (-1, 2))),
    "pad_number": image(
        lambda m, x: F.pad(F.relu(x), (1, 2, 0, 1), value=0.5), "", {"pad": "other than zero"}
    ),
    "pad_reflect": image(
        lambda m, x: F.pad(x, (1, 2, 0, 1), mode="reflect"), "", {"pad.default": NONE}
    ),
    "pad_replicate": image(
        lambda m, x: F.pad(x, (1, 2, 0, 1), mode="replicate"), "", {"pad.default": NONE}
    ),
    "pad_circular": image(
        lambda m, x: F.pad(x, (1, 2, 0, 1), mode="circular"), "QLinearConcat QLinearConcat"
    ),
    "where": image(
        lambda m, x: torch.where(x > 0, x, m.other(x) * x),
        "QLinearConv QLinearMul Greater QLinearWhere",
        {"where.self": NONE},
        other=conv(),
    ),
    "view": whole(
        lambda m, x: m.head(m.c(x).view(x.size(0), -1)), "QLinearConv QGemm", IMAGE, **HEAD
    ),
    "flatten": whole(lambda m, x: m.head(m.c(x).flatten(1)), "QLinearConv QGemm", IMAGE, **HEAD),
    "reshape": whole(
        lambda m, x: m.head(m.c(x).reshape(x.shape[0], 8, -1)), "QLinearConv QGemm", IMAGE, **ROWS
    ),
    "merged": whole(
        lambda m, x: m.head(m.c(x).view(x.size(0) * 8, 64)), "QLinearConv QGemm", IMAGE, **ROWS
    ),
    "squeeze": whole(
        lambda m, x: m.head(F.avg_pool2d(m.c(x), 8).squeeze()),
        "QLinearConv QLinearGlobalAveragePool QGemm",
        IMAGE,
        **SMALL,
    ),
}
