"""Networks of torchvision and timm with random weights, and two that many people write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.networks.random_inputs import Network, images
from benchmarks.realdata import let_torchvision_import

__all__ = ["TIMM", "TORCHVISION", "USUAL"]

CLASSES = """
    alexnet vgg11_bn resnet18 resnet50 wide_resnet50_2 resnext50_32x4d densenet121 squeezenet1_1
    mobilenet_v2 mobilenet_v3_small mobilenet_v3_large shufflenet_v2_x1_0 mnasnet1_0
    efficientnet_b0 efficientnet_v2_s regnet_y_400mf regnet_x_400mf convnext_tiny googlenet
    inception_v3 vit_b_16 swin_t swin_v2_t maxvit_t
"""
SEGMENTS = "fcn_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large"
CLIPS = "r3d_18 mc3_18"
SIZES = {"inception_v3": 299}
WHOLE = {"aux_logits": False, "init_weights": False}  # as for inference
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "googlenet": WHOLE,
    "inception_v3": WHOLE,
    **{name: {"weights_backbone": None} for name in SEGMENTS.split()},
}


def _torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        let_torchvision_import()
        import torchvision

        return torchvision.models.get_model(name, weights=None, **options)

    return build


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        let_torchvision_import()
        import timm

        return timm.create_model(name, **options)

    return build


def _row(name: str, group: str, *sizes: int, argument: str = "x") -> Network:
    build = _torchvision(name, **OPTIONS.get(name, {}))
    return Network(group, build, images(*sizes, name=argument))


TORCHVISION: dict[str, Network] = {
    **{n: _row(n, "classes", 3, *[SIZES.get(n, 224)] * 2) for n in CLASSES.split()},
    **{
        n: _row(n, "segmentation", 3, 224, 224, argument="input" if "lraspp" in n else "x")
        for n in SEGMENTS.split()
    },
    **{n: _row(n, "video", 3, 8, 112, 112) for n in CLIPS.split()},
}

# --- timm ----------------------------------------------------------------------------------------

_TINY = {"embed_dim": 96, "depth": 2, "num_heads": 4}
PLAIN: Mapping[int, str] = {
    64: """
        resnetv2_50x1_bit seresnet18 dla46x_c resnest14d skresnet18 vgg11 cs3darknet_s
        ese_vovnet19b_slim selecsls42b regnetz_005 repvgg_a0 mobileone_s0 nfnet_l0
        lambda_resnet26t ghostnet_050 mobilenetv4_conv_small lcnet_050 hardcorenas_a starnet_s1
        fastvit_t8 mobilevit_xxs edgenext_xx_small poolformer_s12 efficientvit_b0 mambaout_femto
        davit_tiny focalnet_tiny_srf resnet26d gcresnext26ts eca_nfnet_l0 efficientnet_lite0
        tf_efficientnetv2_b0 mobilenetv3_small_050 tinynet_e fbnetc_100 rexnet_100 repghostnet_050
        repvit_m0_9 mobilevitv2_050 inception_next_atto pvt_v2_b0 hrnet_w18_small cspresnet50
        dpn48b ghostnetv3_050 mobilenetv4_hybrid_medium fasternet_t0
    """,
    112: "convmixer_1024_20_ks9_p14",
    224: """
        efficientformer_l1 levit_128s tiny_vit_5m_224 mixer_s16_224 gmlp_ti16_224 volo_d1_224
        hiera_tiny_224 coatnet_pico_rw_224 gcvit_xxtiny pit_ti_224 nest_tiny convit_tiny
        visformer_tiny resmlp_12_224 shvit_s1 swiftformer_xs
    """,
    240: "crossvit_9_240",
    256: "botnet26t_256 halonet26t",
}
"""Size of the images -> networks."""
NARROWER: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "res2net50_26w_4s": (64, {"layers": [1, 1, 1, 1]}),
    "deit_tiny_distilled_patch16_224": (224, _TINY),
    "beit_base_patch16_224": (224, _TINY),
    "cait_xxs24_224": (224, _TINY),
    "xcit_nano_12_p16_224": (224, {"embed_dim": 96, "depth": 4, "num_heads": 4}),
    "eva02_tiny_patch14_224": (224, _TINY),
    "coat_tiny": (224, {"embed_dims": (64, 96, 96, 96), "serial_depths": (1, 1, 1, 1)}),
    "twins_svt_small": (
        64,
        {"img_size": 64, "embed_dims": (32, 64, 128, 128), "depths": (1, 1, 2, 1)},
    ),
    "sequencer2d_s": (224, {"layers": (1, 1, 2, 1)}),
    "densenet121": (64, {"growth_rate": 8, "block_config": (2, 2, 2, 2)}),
    "swinv2_cr_tiny_224": (224, {"embed_dim": 48, "depths": (1, 1, 1, 1)}),
}
"""Network -> size of the images, and options that make it narrower."""
SIMPLE = {name: (size, {}) for size, names in PLAIN.items() for name in names.split()}
TIMM: dict[str, Network] = {
    name: Network("timm", _timm(name, num_classes=10, **options), images(3, size, size))
    for name, (size, options) in {**SIMPLE, **NARROWER}.items()
}

# --- usual architectures -------------------------------------------------------------------------


def _conv(i: int, o: int, k: int = 3, stride: int = 1, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    conv = nn.Conv2d(i, o, k, stride, k // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o), act())


class _UNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(4)]
        pairs = list(zip([3, *sizes], sizes, strict=False))
        self.down = nn.ModuleList(nn.Sequential(_conv(i, o), _conv(o, o)) for i, o in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * o, o, 2, 2) for o in sizes[:3])
        self.join = nn.ModuleList(nn.Sequential(_conv(2 * o, o), _conv(o, o)) for o in sizes[:3])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for i, layers in enumerate(self.down):
            x = layers(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for i in (2, 1, 0):
            x = self.join[i](torch.cat([self.up[i](x), skips[i]], 1))
        return self.head(x)


class _Split(nn.Module):
    """Part of the channels goes through further layers, and all are joined (YOLOv8)."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        half = width // 2
        self.first = _conv(width, width, 1, act=nn.SiLU)
        two = partial(_conv, half, half, act=nn.SiLU)
        self.layers = nn.ModuleList(nn.Sequential(two(), two()) for _ in range(count))
        self.last = _conv((2 + count) * half, width, 1, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for layers in self.layers:
            parts.append(parts[-1] + layers(parts[-1]))
        return self.last(torch.cat(parts, 1))


class _Yolo(nn.Module):
    def __init__(self, w: int = 16) -> None:
        super().__init__()

        def stage(i: int, o: int, count: int, kernel: int = 3, stride: int = 2) -> nn.Module:
            return nn.Sequential(_conv(i, o, kernel, stride, nn.SiLU), _Split(o, count))

        def head(width: int) -> nn.Module:
            two = (_conv(width, 4 * w, act=nn.SiLU), _conv(4 * w, 4 * w, act=nn.SiLU))
            return nn.Sequential(*two, nn.Conv2d(4 * w, 84, 1))

        stem = _conv(3, w, 3, 2, nn.SiLU)
        self.a = nn.Sequential(stem, stage(w, 2 * w, 1), stage(2 * w, 4 * w, 2))
        self.b, self.c = stage(4 * w, 8 * w, 2), stage(8 * w, 16 * w, 1)
        self.join_b, self.join_a = stage(24 * w, 8 * w, 1, 1, 1), stage(12 * w, 4 * w, 1, 1, 1)
        self.heads = nn.ModuleList(head(width) for width in (4 * w, 8 * w, 16 * w))

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(a)
        c = self.c(b)
        b = self.join_b(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        a = self.join_a(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1))
        levels = [h(x).flatten(2) for h, x in zip(self.heads, (a, b, c), strict=True)]
        joined = torch.cat(levels, 2)
        return torch.cat([joined[:, :4].exp().clamp(max=50), joined[:, 4:].sigmoid()], 1)


USUAL: dict[str, Network] = {
    **{
        name: Network("usual", _torchvision(name), images(3, 224, 224))
        for name in ("resnet50", "mobilenet_v3_small", "mobilenet_v3_large", "efficientnet_b0")
    },
    "convnext_atto": Network("usual", _timm("convnext_atto"), images(3, 224, 224)),
    "vit_tiny": Network("usual", _timm("vit_tiny_patch16_224"), images(3, 224, 224)),
    "unet": Network("usual", _UNet, images(3, 128, 128)),
    "yolo": Network("usual", _Yolo, images(3, 256, 256)),
}
"""In the sizes in which they are used."""
