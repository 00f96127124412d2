"""Networks that qtool is given as ONNX files: fresh ones of torch.onnx, and some that packages
ship."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import torch
from detection import DETECTION, YOLOV5_SLICES
from from_timm import TIMM
from from_transformers import SERIES, TEXT, VISION
from network import Network, Rows, images
from own_images import OWN_IMAGES
from own_others import OWN_OTHERS
from own_sequences import OWN_SEQUENCES
from torch import nn

__all__ = ["FILES", "FRESH"]

FRESH = Rows("torch.onnx files in")
FILES = Rows("files shipped in packages")
_ALL: Mapping[str, Network] = {
    **OWN_IMAGES,
    **OWN_SEQUENCES,
    **OWN_OTHERS,
    **TIMM,
    **TEXT,
    **VISION,
    **SERIES,
    **DETECTION,
    "yolov5_slices": YOLOV5_SLICES,
}
_TABLE = """
    unetbilinear_dynamo18 srgan_ts17 unettranspose_ts13 crnn_ts17 crnn_dynamo18 deepspeech_ts13
    pointnet_dynamo20 convnextv2_ts17 multitask_ts18 styletransfer_dynamo20 diffusionunet_dynamo20
    dlrm_ts17 gnn_dynamo18 spatialtransformer_ts20 kan_dynamo18 nerf_ts13 yolov8_ts17
    yolov5_slices_ts13 centernet_ts13 timm_mobilenetv4_conv_small_dynamo18 timm_fastvit_t8_ts17
    electra_ts17 electra_dynamo18 segformer_ts17 wav2vec2_dynamo18 clip_both_dynamo18
""".split()  # noqa: SIM905  # read more easily so


def _fresh(name: str) -> Network:
    """NETWORK_EXPORTEROPSET."""
    network, _, how = name.rpartition("_")
    exporter = "dynamo" if how.startswith("dynamo") else "torchscript"
    opset = int(how[-2:])
    return replace(_ALL[network], group=FRESH.group, exporter=exporter, opset=opset)


def _shipped(name: str, input_name: str) -> Network:
    """One of the small copies of well-known networks in the onnx package; their weights are
    constants."""
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    given = images(3, 224, 224, name=input_name)

    def one(_: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
        return given(1, generator)  # their sizes are fixed

    return Network(FILES.group, nn.Module, one, file=str(folder / f"light_{name}.onnx"))


FRESH.update({f"onnx_{name}": _fresh(name) for name in _TABLE})
FILES.update(
    {
        "file_light_inception_v1": _shipped("inception_v1", "data_0"),
        "file_light_resnet50": _shipped("resnet50", "gpu_0/data_0"),
        "file_light_shufflenet": _shipped("shufflenet", "gpu_0/data_0"),
        "file_light_squeezenet": _shipped("squeezenet", "data_0"),
    }
)
