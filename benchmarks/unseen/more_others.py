"""More small networks: the idioms that people use, one network for some of each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from network import Rows, ids, images, joined, mask, noise
from torch import Tensor, nn

__all__ = ["MORE_OTHERS"]

MORE_OTHERS = Rows("own networks, second set")
own = MORE_OTHERS
TIME = {0: "batch", 1: "time"}


@own(
    "sparsegraph",
    joined(noise(20, 8), lambda n, g: {"edges": torch.randint(0, 20, (n, 2, 50), generator=g)}),
)
class SparseGraph(nn.Module):
    """Messages by gather and scatter_add with degrees counted; a batch of graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = (
            nn.Linear(8, 32),
            nn.ModuleList([nn.Linear(64, 32) for _ in range(2)]),
        )
        self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in range(2)])
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.first(x)
        source, target = edges.unbind(1)
        place = target.unsqueeze(-1).expand(-1, -1, h.size(-1))
        degree = torch.zeros_like(x[..., 0]).scatter_add(
            1, target, torch.ones_like(target, dtype=x.dtype)
        )
        for layer, norm in zip(self.layers, self.norms, strict=False):
            sent = torch.gather(h, 1, source.unsqueeze(-1).expand(-1, -1, h.size(-1)))
            got = torch.zeros_like(h).scatter_add_(1, place, sent) / degree.clamp_min(1).unsqueeze(
                -1
            )
            h = norm(h + F.relu(layer(torch.cat([h, got], -1))))
        return self.head(h.max(dim=1).values)


@own(
    "pixelbert",
    lambda n, g: {"image": torch.randint(0, 256, (n, 32, 32, 3), generator=g, dtype=torch.uint8)},
)
class BytesIn(nn.Module):
    """uint8 images as cameras give them, normalized in the model; class and confidence out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.Hardswish(), nn.Conv2d(16, 32, 3, 2, 1), nn.Mish()
        )
        self.head = nn.Linear(32, 6)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = (image.permute(0, 3, 1, 2).float() / 255.0 - self.mean) / self.std
        scores = self.head(self.body(x).amax((2, 3))).softmax(-1)
        best, kind = scores.max(dim=-1)
        return kind, best


@own(
    "scalarinput",
    joined(
        images(3, 16, 16),
        lambda _, g: {"strength": torch.tensor(0.5) + 0.1 * torch.rand((), generator=g)},
    ),
)
class ScalarInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor, strength: Tensor) -> Tensor:
        return torch.lerp(x, self.b(F.relu_(self.a(x))), strength).clamp_(-3, 3)


@own("posenet", images(3, 64, 64))
class PoseNet(nn.Module):
    """Hourglass; joints by a soft argmax over heat maps, with their confidence."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(True))
        self.downs = nn.ModuleList([nn.Conv2d(16, 16, 3, 2, 1) for _ in range(3)])
        self.ups = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(3)])
        self.heat = nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.stem(x)
        kept = []
        for down in self.downs:
            kept.append(x)
            x = F.relu(down(x))
        for up in self.ups:
            x = F.interpolate(x, scale_factor=2) + kept.pop()
            x = F.relu(up(x))
        heat = self.heat(x)
        b, j, h, w = heat.shape
        p = heat.flatten(2).mul(4).softmax(-1).view(b, j, h, w)
        xs = (p.sum(2) * torch.arange(w, dtype=p.dtype)).sum(-1) / w
        ys = (p.sum(3) * torch.arange(h, dtype=p.dtype)).sum(-1) / h
        return {"joints": torch.stack([xs, ys], -1), "score": p.flatten(2).max(-1)[0], "heat": heat}


@own("siamrpn", joined(images(3, 32, 32, name="template"), images(3, 64, 64, name="search")))
class Tracker(nn.Module):
    """Correlation of a template with a search window, sample by sample through groups."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 5, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 5, 2)
        )
        self.head = nn.Sequential(nn.Conv2d(24, 24, 1), nn.ReLU(), nn.Conv2d(24, 5, 1))

    def forward(self, template: Tensor, search: Tensor) -> Tensor:
        z, x = self.body(template), self.body(search)
        b, c, h, w = z.shape
        patches = F.unfold(x, (h, w)).view(b, c, h * w, -1)
        side = x.shape[-1] - w + 1
        found = (patches * z.reshape(b, c, h * w, 1)).sum(2).view(b, c, side, side) / (h * w)
        return self.head(found)


@own("deepfm", joined(ids(6, 50, name="fields", low=0), noise(4, name="numbers")))
class DeepFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.arange(6) * 50)
        self.table, self.first = nn.Embedding(300, 12), nn.Embedding(300, 1)
        self.deep = nn.Sequential(
            nn.Linear(76, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 1)
        )
        self.cross = nn.ParameterList([nn.Parameter(torch.randn(76) * 0.1) for _ in range(2)])
        self.out = nn.Linear(76, 1)

    def forward(self, fields: Tensor, numbers: Tensor) -> Tensor:
        at = fields + self.offsets
        rows = self.table(at)
        pairs = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True)
        x0 = x = torch.cat([rows.flatten(1), numbers], 1)
        for w in self.cross:
            x = x0 * (x @ w)[:, None] + x
        return torch.sigmoid(self.first(at).sum(1) + pairs + self.deep(x0) + self.out(x)).squeeze(1)


@own(
    "sasrec",
    joined(ids(20, 300, name="history", low=0), mask(20, dtype=torch.bool)),
    dynamic={"history": TIME, "mask": TIME},
)
class SASRec(nn.Module):
    """The next item: causal attention, scores by the item table itself, the ten best."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(300, 48), nn.Embedding(64, 48)
        layer = nn.TransformerEncoderLayer(
            48, 2, 96, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(48)

    def forward(self, history: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        steps = history.shape[1]
        x = self.items(history) * 48**0.5 + self.places(torch.arange(steps, device=history.device))
        future = torch.triu(torch.ones(steps, steps, dtype=torch.bool, device=history.device), 1)
        y = self.norm(self.encoder(x, mask=future))
        last = (mask.long().cumsum(1) * mask.long()).argmax(1)
        user = y[torch.arange(y.size(0)), last]
        return torch.topk(user @ self.items.weight.T, 10)


@own("slotattention", images(3, 32, 32))
class SlotAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 5, 2, 2), nn.ReLU(), nn.Conv2d(32, 32, 5, 2, 2), nn.ReLU()
        )
        self.start = nn.Parameter(torch.randn(1, 4, 32))
        self.q, self.k, self.v = (nn.Linear(32, 32, bias=False) for _ in range(3))
        self.gru = nn.GRUCell(32, 32)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.norm_in, self.norm = nn.LayerNorm(32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_in(self.encoder(x).flatten(2).transpose(1, 2))
        k, v = self.k(y), self.v(y)
        slots = self.start.repeat(x.size(0), 1, 1)
        for _ in range(3):
            before = slots
            share = (
                torch.einsum("bid,bjd->bij", self.q(self.norm(slots)) / 32**0.5, k).softmax(1)
                + 1e-8
            )
            share = share / share.sum(-1, keepdim=True)
            slots = self.gru((share @ v).reshape(-1, 32), before.reshape(-1, 32)).view_as(before)
            slots = slots + self.mlp(slots)
        return slots


@own("perceiver", noise(40, 16), dynamic={"x": TIME})
class Perceiver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(6, 32))
        self.cross = nn.MultiheadAttention(32, 1, kdim=16, vdim=16, batch_first=True)
        self.own = nn.MultiheadAttention(32, 4, batch_first=True)
        self.mlp, self.head = (
            nn.Sequential(nn.Linear(32, 64), nn.GELU("tanh"), nn.Linear(64, 32)),
            nn.Linear(32, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        z = self.latents.unsqueeze(0).expand(x.shape[0], -1, -1)
        z = z + self.cross(z, x, x)[0]
        for _ in range(2):
            z = z + self.own(z, z, z)[0]
            z = z + self.mlp(F.layer_norm(z, (32,)))
        return self.head(z.flatten(1, 2).view(z.size(0), 6, 32).mean(1))


@own("slicewrites", images(4, 16, 16))
class SliceWrites(nn.Module):
    """Results written into slices, by masks and by indices."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(2, 8, 3, padding=1)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_zeros(x.size(0), 16, 16, 16)
        out[:, :8] = self.a(x[:, :2])
        out[:, 8:, ::2] = self.b(x[:, 2:])[:, :, ::2]
        out[out < 0] *= 0.1
        pooled = out.mean((2, 3))
        pooled[:, [0, 3]] = pooled[:, [3, 0]].clone()
        pooled += torch.where(pooled > 0.5, pooled, torch.zeros_like(pooled))
        return self.head(pooled)


@own("repeats", joined(noise(6, 16), lambda n, g: {"upper": torch.rand(n, 6, generator=g)}))
class Repeats(nn.Module):
    """A length regulator with fixed lengths, cumulative sums, rolls, flips and sorts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv = nn.Linear(16, 24), nn.Conv1d(24, 24, 3, padding=1)
        self.head = nn.Linear(24, 8)

    def forward(self, x: Tensor, upper: Tensor) -> Tensor:
        y = F.selu(self.first(x)).repeat_interleave(3, dim=1)
        weight = torch.cumsum(upper, 1).repeat_interleave(3, 1).unsqueeze(-1)
        y = y * torch.tanh(weight) + torch.roll(y, 1, 1) - y.flip(1)
        y = self.conv(y.transpose(1, 2)).transpose(1, 2)
        best, _ = torch.sort(y, dim=1, descending=True)
        return self.head(best[:, :4].mean(1) + y.std(1) + y.median(1)[0])
