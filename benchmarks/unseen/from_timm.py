"""Networks of timm by name, some with fewer or narrower blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from network import Network, Rows, images, torchvision
from torch import nn

__all__ = ["TIMM", "row"]

TIMM = Rows("timm")
_TINY = {"embed_dim": 96, "depth": 2, "num_heads": 4}


def _build(name: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torchvision()  # timm imports it where it is installed
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10, **options)

    return build


def row(name: str, size: int = 64, group: str = TIMM.group, **options: Any) -> Network:
    """A network for images of `size`."""
    return Network(group, _build(name, options), images(3, size, size))


TABLE: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("resnetv2_50x1_bit", 64, {}),
    ("seresnet18", 64, {}),
    ("dla46x_c", 64, {}),
    ("res2net50_26w_4s", 64, {"layers": [1, 1, 1, 1]}),
    ("resnest14d", 64, {}),
    ("skresnet18", 64, {}),
    ("vgg11", 64, {}),
    ("cs3darknet_s", 64, {}),
    ("ese_vovnet19b_slim", 64, {}),
    ("selecsls42b", 64, {}),
    ("regnetz_005", 64, {}),
    ("repvgg_a0", 64, {}),
    ("mobileone_s0", 64, {}),
    ("nfnet_l0", 64, {}),
    ("lambda_resnet26t", 64, {}),
    ("botnet26t_256", 256, {}),
    ("ghostnet_050", 64, {}),
    ("mobilenetv4_conv_small", 64, {}),
    ("lcnet_050", 64, {}),
    ("hardcorenas_a", 64, {}),
    ("starnet_s1", 64, {}),
    ("efficientformer_l1", 224, {}),
    ("fastvit_t8", 64, {}),
    ("mobilevit_xxs", 64, {}),
    ("edgenext_xx_small", 64, {}),
    ("levit_128s", 224, {}),
    ("poolformer_s12", 64, {}),
    ("convmixer_1024_20_ks9_p14", 112, {}),
    ("efficientvit_b0", 64, {}),
    ("mambaout_femto", 64, {}),
    ("tiny_vit_5m_224", 224, {}),
    ("mixer_s16_224", 224, {}),
    ("gmlp_ti16_224", 224, {}),
    ("deit_tiny_distilled_patch16_224", 224, _TINY),
    ("beit_base_patch16_224", 224, _TINY),
    ("cait_xxs24_224", 224, _TINY),
    ("xcit_nano_12_p16_224", 224, {"embed_dim": 96, "depth": 4, "num_heads": 4}),
    ("eva02_tiny_patch14_224", 224, _TINY),
    ("coat_tiny", 224, {"embed_dims": (64, 96, 96, 96), "serial_depths": (1, 1, 1, 1)}),
    ("crossvit_9_240", 240, {}),
    ("davit_tiny", 64, {}),
    ("focalnet_tiny_srf", 64, {}),
    ("volo_d1_224", 224, {}),
    (
        "twins_svt_small",
        64,
        {"img_size": 64, "embed_dims": (32, 64, 128, 128), "depths": (1, 1, 2, 1)},
    ),
    ("hiera_tiny_224", 224, {}),
    ("sequencer2d_s", 224, {"layers": (1, 1, 2, 1)}),
)
TIMM.update({f"timm_{name}": row(name, size, **options) for name, size, options in TABLE})
