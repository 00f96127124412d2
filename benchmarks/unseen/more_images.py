"""More small networks: the idioms that people use, one network for some of each."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from network import Rows, images, joined, noise
from torch import Tensor, nn
from torch.nn.utils import parametrize

__all__ = ["MORE_IMAGES"]

MORE_IMAGES = Rows("own networks, second set")
own = MORE_IMAGES
TIME = {0: "batch", 1: "time"}


@own("unfoldattention", images(16, 16, 16))
class UnfoldAttention(nn.Module):
    """Attention of each pixel to its 3 x 3 neighbours, by unfold; and fold of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).chunk(3, 1)
        k = F.unfold(k, 3, padding=1).view(b, c, 9, h * w)
        v = F.unfold(v, 3, padding=1).view(b, c, 9, h * w)
        share = (q.reshape(b, c, 1, h * w) * k).sum(1, keepdim=True).mul(c**-0.5).softmax(2)
        y = (share * v).view(b, c * 9, h * w)
        return self.out(F.fold(y, (h, w), 3, padding=1))


@own("gridflow", joined(images(3, 32, 32, name="first"), images(3, 32, 32, name="second")))
class GridFlow(nn.Module):
    """Optical flow: a cost volume, a flow, the second image warped by it."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(16, 16, 3, 1, 1)
        )
        self.flow = nn.Sequential(
            nn.Conv2d(25, 32, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(32, 2, 3, padding=1)
        )

    def forward(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
        a, b = self.encode(first), self.encode(second)
        _, _, h, w = a.shape
        wide = F.pad(b, (2, 2, 2, 2))
        cost = [
            (a * wide[:, :, i : i + h, j : j + w]).mean(1, keepdim=True)
            for i in range(5)
            for j in range(5)
        ]
        flow = self.flow(torch.cat(cost, 1))
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        grid = torch.stack([xs, ys], -1).unsqueeze(0) + flow.permute(0, 2, 3, 1) * 0.05
        return {
            "flow": flow,
            "warped": F.grid_sample(b, grid, align_corners=True, padding_mode="border"),
        }


@own("fouriernet", noise(32, 32, 1))
class FourierNet(nn.Module):
    """A Fourier neural operator: products of a few frequencies with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.head = (
            nn.Linear(3, 16),
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1)),
        )
        self.real = nn.Parameter(torch.randn(2, 16, 16, 6, 6) * 0.06)
        self.imaginary = nn.Parameter(torch.randn(2, 16, 16, 6, 6) * 0.06)
        self.skip = nn.ModuleList([nn.Conv2d(16, 16, 1) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, _ = x.shape
        rows = torch.linspace(0, 1, h).view(1, h, 1, 1).expand(b, h, w, 1)
        columns = torch.linspace(0, 1, w).view(1, 1, w, 1).expand(b, h, w, 1)
        y = self.lift(torch.cat([x, rows, columns], -1)).permute(0, 3, 1, 2)
        for i, skip in enumerate(self.skip):
            f = torch.fft.rfft2(y)
            weight = torch.complex(self.real[i], self.imaginary[i])
            kept = torch.zeros_like(f)
            kept[:, :, :6, :6] = torch.einsum("bixy,ioxy->boxy", f[:, :, :6, :6], weight)
            y = F.gelu(torch.fft.irfft2(kept, s=(h, w)) + skip(y))
        return self.head(y.permute(0, 2, 3, 1))


@own("pinn", joined(noise(1, name="place"), noise(1, name="moment")))
class PINN(nn.Module):
    """Hard boundary conditions around sines of random frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", torch.randn(2, 32))
        self.layers = nn.Sequential(
            OrderedDict(
                first=nn.Linear(64, 64),
                tanh=nn.Tanh(),
                second=nn.Linear(64, 64),
                act=nn.SiLU(),
                output=nn.Linear(64, 1),
            )
        )

    def forward(self, place: Tensor, moment: Tensor) -> Tensor:
        angle = torch.cat([place, moment], dim=1) @ self.rates
        u = self.layers(torch.cat((angle.sin(), angle.cos()), 1))
        return (1 - place**2) * moment * u + torch.sin(torch.pi * place)


@own("siren", noise(2))
def _siren() -> nn.Module:
    class Sine(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(5.0 * x)

    return nn.Sequential(nn.Linear(2, 64), Sine(), nn.Linear(64, 64), Sine(), nn.Linear(64, 3))


@own("vqvae", images(3, 32, 32))
class VQVAE(nn.Module):
    """The nearest row of a codebook by squared distances and argmin."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 24, 4, 2, 1), nn.ReLU(), nn.Conv2d(24, 16, 4, 2, 1)
        )
        self.codebook = nn.Embedding(64, 16)
        self.decoder = nn.Sequential(
            nn.Upsample(scale_factor=2), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(24, 3, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x).permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, 16)
        far = (
            flat.pow(2).sum(1, keepdim=True)
            + self.codebook.weight.pow(2).sum(1)
            - 2 * flat @ self.codebook.weight.t()
        )
        codes = far.argmin(1)
        q = self.codebook(codes).view(z.shape)
        return self.decoder((z + (q - z).detach()).permute(0, 3, 1, 2)), codes.view(z.shape[:-1])


class _Gaussian(nn.Module):
    """A parametrization that keeps a kernel positive and of sum one."""

    def forward(self, x: Tensor) -> Tensor:
        flat = F.softplus(x).flatten(2)
        return (flat / flat.sum(-1, keepdim=True)).view_as(x)


@own("parametrized", images(3, 32, 32))
class Parametrized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blur = nn.Conv2d(3, 3, 5, padding=2, groups=3, bias=False)
        parametrize.register_parametrization(self.blur, "weight", _Gaussian())
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU6(), nn.Conv2d(16, 16, 3, 2, 1), nn.ELU()
        )
        self.mix = nn.utils.parametrizations.orthogonal(nn.Linear(16, 16, bias=False))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.body(self.blur(x)).mean((-2, -1))))
