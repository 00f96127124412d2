"""Small networks on images, as people write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from network import Rows, images, joined, noise
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

__all__ = ["OWN_IMAGES"]

OWN_IMAGES = Rows("own networks (10 to 40 lines)")
own = OWN_IMAGES


def _block(a: int, b: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)),
        *(nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)),
    )


class _UNet(nn.Module):
    def __init__(self, bilinear: bool) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(3, 16), _block(16, 32), _block(32, 64)])
        self.up = nn.ModuleList()
        for a, b in ((64, 32), (32, 16)):
            if bilinear:
                rise = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
                self.up.append(nn.Sequential(rise, nn.Conv2d(a, b, 1)))
            else:
                self.up.append(nn.ConvTranspose2d(a, b, 2, 2))
        self.after = nn.ModuleList([_block(64, 32), _block(32, 16)])
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for i, down in enumerate(self.down):
            x = down(x if i == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for up, after, skip in zip(self.up, self.after, reversed(kept[:-1]), strict=True):
            x = after(torch.cat([skip, up(x)], dim=1))
        return self.head(x)


@own("unettranspose", images(3, 64, 64))
def _unet_transpose() -> nn.Module:
    return _UNet(bilinear=False)


@own("unetbilinear", images(3, 64, 64))
def _unet_bilinear() -> nn.Module:
    return _UNet(bilinear=True)


@own("espcn", images(1, 32, 32))
def _espcn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 32, 3, padding=1), nn.Tanh()),
        *(nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3)),
    )


class _ResidualPrelu(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.PReLU()),
            *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


@own("srgan", images(3, 32, 32))
class SRGAN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 9, padding=4), nn.PReLU())
        self.blocks = nn.Sequential(*[_ResidualPrelu(32) for _ in range(3)])
        self.middle = nn.Conv2d(32, 32, 3, padding=1)
        self.up = nn.Sequential(nn.Conv2d(32, 128, 3, padding=1), nn.PixelShuffle(2), nn.PReLU())
        self.last = nn.Conv2d(32, 3, 9, padding=4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.middle(self.blocks(x))
        return (torch.tanh(self.last(self.up(x))) + 1) / 2


class _Dense(nn.Module):
    def __init__(self, width: int = 16, growth: int = 8) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(width + i * growth, growth, 3, padding=1) for i in range(4)]
        )
        self.last = nn.Conv2d(width + 4 * growth, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for conv in self.convs:
            found.append(F.leaky_relu(conv(torch.cat(found, 1)), 0.2))
        return self.last(torch.cat(found, 1)) * 0.2 + x


@own("rrdb", images(3, 32, 32))
class RRDB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList([_Dense() for _ in range(4)])
        self.up = nn.Conv2d(16, 16, 3, padding=1)
        self.last = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = first = self.first(x)
        for block in self.blocks:
            y = block(y) * 0.2 + y
        y = F.interpolate(y + first, scale_factor=2, mode="nearest")
        return self.last(F.leaky_relu(self.up(y), 0.2))


@own("dcgan", noise(64, 1, 1))
def _dcgan() -> nn.Module:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(((64, 64), (64, 32), (32, 32), (32, 16))):
        layers += [nn.ConvTranspose2d(a, b, 4, 1 if i == 0 else 2, int(i > 0), bias=False)]
        layers += [nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False), nn.Tanh())


class _VAE(nn.Module):
    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.draws = draws
        self.encoder = nn.Sequential(
            *(nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU()),
            nn.Flatten(),
        )
        self.mean, self.spread = nn.Linear(2048, 32), nn.Linear(2048, 32)
        self.start = nn.Linear(32, 2048)
        self.decoder = nn.Sequential(
            *(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1)),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mean, spread = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * spread) if self.draws else mean
        return self.decoder(self.start(z).view(-1, 32, 8, 8)), mean, spread


@own("vae", images(3, 32, 32))
def _vae() -> nn.Module:
    return _VAE(draws=False)


@own("vaerandom", images(3, 32, 32))
def _vae_random() -> nn.Module:
    return _VAE(draws=True)


class _Squeeze(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width)), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = F.adaptive_avg_pool2d(x, 1).view(b, c)
        return x * self.layers(y).view(b, c, 1, 1).expand_as(x)


@own("senet", images(3, 32, 32))
def _senet() -> nn.Module:
    return nn.Sequential(
        *(_block(3, 16), _Squeeze(16), _block(16, 32, 2), _Squeeze(32), _block(32, 48, 2)),
        *(_Squeeze(48), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10)),
    )


@own("fpn", images(3, 64, 64))
class FPN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 48)
        self.stages = nn.ModuleList(
            [_block(a, b, 2) for a, b in zip((3, 16, 32), widths, strict=True)]
        )
        self.lateral = nn.ModuleList([nn.Conv2d(w, 24, 1) for w in widths])
        self.smooth = nn.ModuleList([nn.Conv2d(24, 24, 3, padding=1) for _ in widths])

    def forward(self, x: Tensor) -> list[Tensor]:
        levels = []
        for stage, lateral in zip(self.stages, self.lateral, strict=True):
            x = stage(x)
            levels.append(lateral(x))
        for i in range(len(levels) - 1, 0, -1):
            size = levels[i - 1].shape[-2:]
            levels[i - 1] = levels[i - 1] + F.interpolate(levels[i], size=size, mode="nearest")
        return [smooth(y) for smooth, y in zip(self.smooth, levels, strict=True)]


class _GRN(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((1, 1, 1, width), 0.3))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        size = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        return self.gamma * (x * (size / (size.mean(dim=-1, keepdim=True) + 1e-6))) + self.beta + x


class _Next(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.grn = nn.Linear(width, 4 * width), _GRN(4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + self.narrow(self.grn(F.gelu(self.wide(y)))).permute(0, 3, 1, 2)


@own("convnextv2", images(3, 64, 64))
def _convnext_v2() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 4, 4), _Next(32), _Next(32), nn.Conv2d(32, 64, 2, 2), _Next(64)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10)),
    )


@own("normedweights", images(3, 32, 32))
def _normed_weights() -> nn.Module:
    return nn.Sequential(
        *(weight_norm(nn.Conv2d(3, 32, 3, padding=1)), nn.LeakyReLU(0.1)),
        *(spectral_norm(nn.Conv2d(32, 64, 4, 2, 1)), nn.LeakyReLU(0.1)),
        *(spectral_norm(nn.Conv2d(64, 64, 4, 2, 1)), nn.LeakyReLU(0.1), nn.Flatten()),
        *(weight_norm(nn.Linear(4096, 16)), nn.ReLU(), spectral_norm(nn.Linear(16, 1))),
    )


@own("oddresiduals", images(3, 32, 32))
class OddResiduals(nn.Module):
    """A residual used twice, one of another width, one that subtracts, one scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = _block(3, 16), _block(16, 16), _block(16, 32, 2)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = self.b(x) + x
        y = y - 0.25 * self.b(y) + x
        z = self.c(y)
        short = F.avg_pool2d(y, 2)
        z = z + self.scale * torch.cat([short, torch.zeros_like(short)], dim=1)
        return self.head(z.mean((2, 3)))


@own("condconv", images(8, 16, 16))
class CondConv(nn.Module):
    """The weights of a convolution are a mixture chosen by each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(4, 16, 8, 3, 3) * 0.1)
        self.route, self.head = nn.Linear(8, 4), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        share = torch.sigmoid(self.route(x.mean((2, 3))))
        weight = (share @ self.experts.view(4, -1)).view(b * 16, c, 3, 3)
        y = F.conv2d(x.reshape(1, b * c, h, w), weight, padding=1, groups=b)
        return self.head(F.relu(y.view(b, 16, h, w)).mean((2, 3)))


def _instance(a: int, b: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    pad = nn.ReflectionPad2d(kernel // 2)
    return [pad, nn.Conv2d(a, b, kernel, stride), nn.InstanceNorm2d(b, affine=True), nn.ReLU()]


@own("styletransfer", images(3, 64, 64))
def _style_transfer() -> nn.Module:
    up = nn.Upsample(scale_factor=2, mode="nearest")
    return nn.Sequential(
        *(*_instance(3, 16, 9), *_instance(16, 32, 3, 2), *_instance(32, 32, 3)),
        *(up, *_instance(32, 16, 3), nn.ReflectionPad2d(4), nn.Conv2d(16, 3, 9)),
    )


@own("adain", joined(images(3, 32, 32, name="content"), images(3, 32, 32, name="style")))
class AdaIN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()
        )
        self.decoder = nn.Sequential(
            *(nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)),
            nn.Conv2d(16, 3, 3, padding=1),
        )

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        c, s = self.encoder(content), self.encoder(style)
        mean, spread = s.mean((2, 3), keepdim=True), s.std((2, 3), keepdim=True)
        normed = (c - c.mean((2, 3), keepdim=True)) / (c.std((2, 3), keepdim=True) + 1e-5)
        return self.decoder(normed * spread + mean)


@own("cbam", images(16, 16, 16))
class CBAM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.channel = nn.Sequential(nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1))
        self.space = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        average, most = F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, 1)
        x = x * torch.sigmoid(self.channel(average) + self.channel(most))
        seen = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], dim=1)
        return x * torch.sigmoid(self.space(seen))


class _TimeBlock(nn.Module):
    def __init__(self, a: int, b: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, a), nn.Conv2d(a, b, 3, padding=1)
        self.time = nn.Linear(time, b)
        self.norm2, self.conv2 = nn.GroupNorm(4, b), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.skip(x)


def _steps(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {"t": torch.randint(0, 1000, (count,), generator=generator)}


@own("diffusionunet", joined(images(3, 32, 32), _steps))
class DiffusionUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.down, self.pool = _TimeBlock(16, 32, 64), nn.Conv2d(32, 32, 3, 2, 1)
        self.middle, self.norm = _TimeBlock(32, 32, 64), nn.GroupNorm(4, 32)
        self.qkv, self.out = nn.Conv1d(32, 96, 1), nn.Conv1d(32, 32, 1)
        self.up = _TimeBlock(64, 16, 64)
        self.last = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(16, device=x.device) * (-9.2 / 16))
        angles = t[:, None].float() * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1).to(x.dtype))
        skip = self.down(self.first(x), time)
        y = self.middle(self.pool(skip), time)
        b, c, h, w = y.shape
        q, k, v = self.qkv(self.norm(y).reshape(b, c, h * w)).chunk(3, dim=1)
        seen = F.scaled_dot_product_attention(*(z.transpose(1, 2) for z in (q, k, v)))
        y = y + self.out(seen.transpose(1, 2)).reshape(b, c, h, w)
        y = F.interpolate(y, scale_factor=2.0, mode="nearest")
        return self.last(self.up(torch.cat([y, skip], 1), time))


@own("spatialtransformer", images(1, 28, 28))
class SpatialTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Sequential(
            *(nn.Conv2d(1, 8, 7), nn.MaxPool2d(2, 2), nn.ReLU(True), nn.Conv2d(8, 10, 5)),
            *(nn.MaxPool2d(2, 2), nn.ReLU(True)),
        )
        self.fc = nn.Sequential(nn.Linear(90, 32), nn.ReLU(True), nn.Linear(32, 6))
        nn.init.normal_(self.fc[2].weight, std=0.05)
        self.fc[2].bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.fc(self.place(x).view(-1, 90)).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.size()), align_corners=False)
        x = F.grid_sample(x, grid, align_corners=False)
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2)).view(-1, 320)
        return F.log_softmax(self.fc2(F.dropout(F.relu(self.fc1(x)), training=self.training)), 1)
