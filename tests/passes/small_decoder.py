"""A layer of a decoder with its KV cache, as transformers would write it."""

from typing import Any

import torch
from torch import Tensor, nn

from qtool.core.ops.attention import grouped_attention, sequence_lengths, token_positions
from qtool.frontends.captured_model import capture_model
from qtool.passes import FOR_FILES, run_passes

HEADS, GROUPS, HEAD = 4, 2, 16
WIDTH, POSITIONS = HEADS * HEAD, 32
INPUTS = ("x", "ids", "mask", "past_key", "past_value")


class Layer(nn.Module):
    """Attention, a residual sum in a norm, and an MLP.

    kind: "far" turns positions by the length of the text; "bias" gives one projection a bias;
    "narrow" has heads that the kernel does not rotate.
    """

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.kind = kind
        self.head = 8 if kind == "narrow" else HEAD
        sizes = {"q": HEADS, "k": GROUPS, "v": GROUPS}
        self.projections = nn.ModuleDict(
            {
                name: nn.Linear(WIDTH, count * self.head, bias=kind == "bias" and name == "v")
                for name, count in sizes.items()
            }
        )
        self.out = nn.Linear(HEADS * self.head, WIDTH, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=1e-6) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 48, bias=False) for _ in range(2))
        self.down = nn.Linear(48, WIDTH, bias=False)
        self.register_buffer("steps", torch.logspace(0, -2, self.head // 2))

    def forward(
        self, x: Tensor, ids: Tensor, mask: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, ...]:
        last, total = sequence_lengths(mask)
        places = token_positions(last, ids, POSITIONS)[:, :, None].float()
        if self.kind == "far":
            places = places / places.amax()
        angles = torch.cat([places * self.steps] * 2, -1)
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        heads = [
            layer(x).view(*x.shape[:2], -1, self.head).transpose(1, 2)
            for layer in self.projections.values()
        ]
        for i in (0, 1):
            first, second = heads[i][..., : self.head // 2], heads[i][..., self.head // 2 :]
            heads[i] = heads[i] * cos + torch.cat((-second, first), -1) * sin
        flat = [h.transpose(1, 2).flatten(2) for h in heads]
        attended, key, value = grouped_attention(
            *(*flat, past_key, past_value, last, total, None, None, None, None, None),
            *(HEADS, GROUPS, self.head**-0.5, -1, 0.0),
        )
        total_ = x + self.out(attended)
        y = self.norms[0](total_)
        z = total_ + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))
        return self.norms[1](z), key, value


def inputs(new: int = 3, past: int = 4, head: int = HEAD) -> tuple[Tensor, ...]:
    torch.manual_seed(new)
    cache = torch.randn(2, 1, GROUPS, past, head)
    ids = torch.zeros(1, new, dtype=torch.int64)
    mask = torch.ones(1, past + new, dtype=torch.int64)
    return torch.randn(1, new, WIDTH), ids, mask, cache[0], cache[1]


def captured(kind: str = "") -> tuple[Layer, Any]:
    """The layer, captured with dynamic numbers of texts, of new and of cached tokens."""
    torch.manual_seed(0)
    layer = Layer(kind).eval()
    sizes = {0: "batch", 1: "new"}
    cached = {0: "batch", 2: "past"}
    dynamic = {
        "x": sizes,
        "ids": sizes,
        "mask": {0: "batch", 1: "total"},
        "past_key": cached,
        "past_value": cached,
    }
    return layer, capture_model(layer, inputs(head=layer.head), dynamic)


def fused(*names: str, kind: str = "") -> tuple[Any, dict[str, int]]:
    """The graph of a layer after these fusions, compared with the layer, and their counts."""
    layer, whole = captured(kind)
    module = whole.graph.module
    counts = run_passes(module, [FOR_FILES[name] for name in names])
    for new, past in ((5, 2), (1, 6), (4, 0)):
        given = inputs(new, past, layer.head)
        with torch.no_grad():
            expected, found = layer(*given), module(*given)
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    return module, counts
