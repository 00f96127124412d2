"""Small networks on points, graphs, tables and several inputs, as people write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from network import Batch, Rows, binary, ids, images, joined, mask, noise
from torch import Tensor, nn

__all__ = ["OWN_OTHERS"]

OWN_OTHERS = Rows("own networks (10 to 40 lines)")
own = OWN_OTHERS


@own("nerf", joined(noise(3, name="points"), noise(3, name="directions")))
class NeRF(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(39, 128), *[nn.Linear(128 + 39 * (i == 3), 128) for i in range(1, 6)]]
        )
        self.density, self.feature = nn.Linear(128, 1), nn.Linear(128, 128)
        self.view, self.color = nn.Linear(128 + 27, 64), nn.Linear(64, 3)

    @staticmethod
    def encode(x: Tensor, count: int) -> Tensor:
        parts = [x]
        for i in range(count):
            parts += [torch.sin(2.0**i * x), torch.cos(2.0**i * x)]
        return torch.cat(parts, dim=-1)

    def forward(self, points: Tensor, directions: Tensor) -> Tensor:
        start = h = self.encode(points, 6)
        for i, layer in enumerate(self.layers):
            h = F.relu(layer(torch.cat([h, start], -1) if i == 3 else h))
        density = self.density(h)
        h = torch.cat([self.feature(h), self.encode(directions, 4)], -1)
        return torch.cat([torch.sigmoid(self.color(F.relu(self.view(h)))), density], -1)


@own("pointnet", noise(3, 128))
class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t1, self.t2 = nn.Conv1d(3, 32, 1), nn.Conv1d(32, 64, 1)
        self.t3, self.t4 = nn.Linear(64, 32), nn.Linear(32, 9)
        nn.init.normal_(self.t4.weight, std=0.05)
        self.c1, self.c2, self.c3 = nn.Conv1d(3, 32, 1), nn.Conv1d(32, 64, 1), nn.Conv1d(64, 256, 1)
        self.b1, self.b2, self.b3 = nn.BatchNorm1d(32), nn.BatchNorm1d(64), nn.BatchNorm1d(256)
        self.f1, self.f2, self.f3 = nn.Linear(256, 128), nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.max(F.relu(self.t2(F.relu(self.t1(x)))), 2, keepdim=True)[0].view(-1, 64)
        t = self.t4(F.relu(self.t3(t))).view(-1, 3, 3) + torch.eye(3, device=x.device)
        x = torch.bmm(x.transpose(2, 1), t).transpose(2, 1)
        x = F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))))
        x = torch.max(self.b3(self.c3(x)), 2)[0]
        return F.log_softmax(self.f3(F.relu(self.f2(F.relu(self.f1(x))))), dim=1)


def _graph(count: int, generator: torch.Generator) -> Batch:
    nodes = 10 * count
    edges = torch.randint(0, nodes, (2, 4 * nodes), generator=generator)
    return {"x": torch.randn(nodes, 16, generator=generator), "edges": edges}


def _part(batch: Batch) -> Batch:
    """The graph of the first thirty nodes."""
    edges = batch["edges"]
    inside = (edges < 30).all(0)
    return {"x": batch["x"][:30], "edges": edges[:, inside].contiguous()}


class _GNN(nn.Module):
    """Messages added where they arrive; a state that a cell keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.message = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 64))
        self.cell, self.head = nn.GRUCell(64, 64), nn.Linear(64, 7)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        source, target = edges[0], edges[1]
        for _ in range(2):
            sent = self.message(torch.cat([h[source], h[target]], dim=-1))
            arrived = torch.zeros_like(h).index_add_(0, target, sent)
            h = self.cell(arrived, h)
        return self.head(h)


_GRAPH = {"x": {0: "nodes"}, "edges": {1: "count"}}


@own("gnn", _graph, dynamic=_GRAPH, other=_part)
def _gnn() -> nn.Module:
    return _GNN()


@own("gnn_default", _graph, other=_part, fixed=True)
def _gnn_default() -> nn.Module:
    return _GNN()


@own("gat", joined(noise(12, 16), binary(12, 12, name="adjacency")))
class GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.a = nn.Linear(16, 32, bias=False), nn.Parameter(torch.randn(4, 16) * 0.3)
        self.w2 = nn.Linear(32, 7)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        b, n, _ = x.shape
        h = self.w(x).view(b, n, 4, 8).permute(0, 2, 1, 3)
        left, right = self.a[:, :8], self.a[:, 8:]
        e = torch.einsum("bhnd,hd->bhn", h, left).unsqueeze(-1)
        e = F.leaky_relu(e + torch.einsum("bhnd,hd->bhn", h, right).unsqueeze(-2), 0.2)
        own_edges = adjacency + torch.eye(n)
        e = e.masked_fill(own_edges.unsqueeze(1) == 0, float("-inf"))
        y = torch.matmul(F.softmax(e, dim=-1), h).permute(0, 2, 1, 3).reshape(b, n, 32)
        return self.w2(F.elu(y))


def _clicks(count: int, generator: torch.Generator) -> Batch:
    dense = torch.randint(0, 50, (count, 13), generator=generator).float()
    return {"dense": dense, "sparse": torch.randint(0, 100, (count, 6, 3), generator=generator)}


@own("dlrm", _clicks)
class DLRM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(300, 32, mode="sum") for _ in range(6)])
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(53, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(torch.log1p(dense))
        rows = torch.stack([x, *[bag(sparse[:, i]) for i, bag in enumerate(self.bags)]], dim=1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        i, j = torch.tril_indices(7, 7, offset=-1)
        return torch.sigmoid(self.top(torch.cat([x, products[:, i, j]], dim=1)))


def _bags(count: int, generator: torch.Generator) -> Batch:
    ids = torch.randint(0, 300, (5 * count,), generator=generator)
    return {"ids": ids, "offsets": torch.arange(count) * 5}


@own(
    "embeddingbagoffsets",
    _bags,
    dynamic={"ids": {0: "tokens"}, "offsets": {0: "batch"}},
    other=lambda b: {"ids": b["ids"][:15], "offsets": b["offsets"][:3]},
)
class EmbeddingBagOffsets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.fc = nn.EmbeddingBag(300, 64, mode="mean"), nn.Linear(64, 4)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.fc(self.bag(ids, offsets))


@own("widedeep", joined(noise(8, name="numbers"), ids(5, 100, name="categories", low=0)))
class WideDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 1)
        self.tables = nn.ModuleList([nn.Embedding(100, 8) for _ in range(5)])
        self.norm = nn.BatchNorm1d(48)
        self.deep = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        rows = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        x = self.norm(torch.cat([*rows, numbers], 1))
        return torch.sigmoid(self.wide(numbers) + self.deep(x)).squeeze(-1)


@own("tiedautoencoder", noise(64))
class TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(48, 64) * 0.15)
        self.b = nn.Parameter(torch.randn(12, 48) * 0.2)
        self.bias = nn.ParameterList([nn.Parameter(torch.zeros(n)) for n in (48, 12, 48, 64)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.sigmoid(F.linear(x, self.a, self.bias[0]))
        code = F.linear(h, self.b, self.bias[1])
        back = torch.sigmoid(F.linear(code, self.b.t(), self.bias[2]))
        return code, F.linear(back, self.a.t(), self.bias[3])


def _volume(a: int, b: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv3d(a, b, 3, padding=1), nn.BatchNorm3d(b), nn.LeakyReLU())


@own("unet3d", images(1, 16, 16, 16))
class UNet3d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = _volume(1, 8), _volume(8, 16), _volume(16, 32)
        self.up1, self.d1 = nn.ConvTranspose3d(32, 16, 2, 2), _volume(32, 16)
        self.up2, self.d2 = nn.ConvTranspose3d(16, 8, 2, 2), _volume(16, 8)
        self.head = nn.Conv3d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(F.max_pool3d(a, 2))
        c = self.c(F.max_pool3d(b, 2))
        y = self.d1(torch.cat((self.up1(c), b), 1))
        return torch.softmax(self.head(self.d2(torch.cat((self.up2(y), a), 1))), dim=1)


@own("siamese", joined(images(1, 28, 28, name="left"), images(1, 28, 28, name="right")))
class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            *(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 32)),
        )

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.cnn(left), self.cnn(right)
        return F.cosine_similarity(a, b), F.pairwise_distance(a, b)


@own("multitask", images(3, 32, 32))
class Multitask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 32, 3, 2, 1), nn.ReLU()
        )
        self.box, self.cls = nn.Linear(32, 4), nn.Linear(32, 10)
        self.mask = nn.Conv2d(32, 1, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.body(x)
        flat = y.mean((2, 3))
        scores, best = self.cls(flat).topk(3, dim=1)
        return {
            "box": self.box(flat).sigmoid(),
            "mask": self.mask(y).sigmoid(),
            "cls": scores,
            "best": best,
        }


class _Spline(nn.Module):
    """A layer of a Kolmogorov-Arnold network: B-splines of every input."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.register_buffer("grid", torch.arange(-3, 9.0).expand(a, -1) * 0.4 - 1)
        self.base = nn.Parameter(torch.randn(b, a) * 0.2)
        self.spline = nn.Parameter(torch.randn(b, a * 8) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        y, grid = x.unsqueeze(-1), self.grid
        found = ((y >= grid[:, :-1]) & (y < grid[:, 1:])).to(x.dtype)
        for k in range(1, 4):
            rise = (y - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
            fall = (grid[:, k + 1 :] - y) / (grid[:, k + 1 :] - grid[:, 1:-k])
            found = rise * found[:, :, :-1] + fall * found[:, :, 1:]
        return F.linear(F.silu(x), self.base) + F.linear(found.flatten(1), self.spline)


@own("kan", noise(8, scale=0.6))
def _kan() -> nn.Module:
    return nn.Sequential(_Spline(8, 32), _Spline(32, 16), _Spline(16, 3))


@own("mixturedensity", noise(4))
class MixtureDensity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh())
        self.pi, self.mu, self.sigma = nn.Linear(96, 5), nn.Linear(96, 15), nn.Linear(96, 5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x)
        pi = F.softmax(self.pi(h), -1)
        mu = self.mu(h).view(-1, 5, 3)
        return {"pi": pi, "mu": mu, "sigma": torch.exp(self.sigma(h))}


@own("din", joined(ids(8, name="history", low=0), ids(1, name="target", low=0), mask(8)))
class DIN(nn.Module):
    """Deep interest: what was clicked before, weighted by what is offered now."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(200, 24)
        self.unit = nn.Sequential(nn.Linear(96, 32), nn.PReLU(), nn.Linear(32, 1))
        self.mlp = nn.Sequential(nn.Linear(48, 64), nn.PReLU(), nn.Linear(64, 1))

    def forward(self, history: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        seen, item = self.items(history), self.items(target)
        each = item.expand(-1, seen.size(1), -1)
        score = self.unit(torch.cat([each, seen, each - seen, each * seen], dim=-1)).squeeze(-1)
        score = score.masked_fill(mask == 0, -(2**31) + 1)
        pooled = torch.bmm(score.softmax(-1).unsqueeze(1), seen).squeeze(1)
        return self.mlp(torch.cat([pooled, item.squeeze(1)], dim=-1)).sigmoid()


@own("capsnet", images(1, 20, 20))
class CapsNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 32, 9), nn.Conv2d(32, 32, 5, 2)
        self.weight = nn.Parameter(torch.randn(10, 64, 8, 8) * 0.2)

    @staticmethod
    def squash(x: Tensor) -> Tensor:
        size = (x**2).sum(-1, keepdim=True)
        return size / (1 + size) * x / torch.sqrt(size + 1e-8)

    def forward(self, x: Tensor) -> Tensor:
        u = self.primary(F.relu(self.conv(x)))
        u = self.squash(u.view(u.size(0), 4, 8, -1).permute(0, 1, 3, 2).reshape(u.size(0), 64, 8))
        guess = torch.einsum("jiod,bid->bjio", self.weight, u)
        logits = torch.zeros(*guess.shape[:3], device=x.device)
        v = guess[:, :, 0]
        for i in range(3):
            v = self.squash((logits.softmax(1).unsqueeze(-1) * guess).sum(2))
            if i < 2:
                logits = logits + (guess * v.unsqueeze(2)).sum(-1)
        return v.norm(dim=-1)
