"""The examples, and networks of torchvision with random weights: models with calibration data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from benchmarks.realdata import let_torchvision_import

__all__ = ["EXAMPLES", "Example", "torchvision_networks"]

ROOT = Path(__file__).parents[2]
TOKENS, SIZE = 64, 64
"""Of a text, and of an image: a .tflite file has one length."""
VISION = ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5")
VISION += ("efficientnet_b0", "mnasnet0_5", "regnet_y_400mf", "densenet121", "googlenet")
VISION += ("convnext_tiny", "vit_b_16")
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "googlenet": {"init_weights": True, "aux_logits": False},
    "vit_b_16": {"image_size": SIZE},
}
Example = Callable[[], dict[str, Any]]
"""Returns "model" and "data"."""


def _trained(model: nn.Module, example: str) -> nn.Module:
    model.load_state_dict(load_file(ROOT / "examples" / example / "weights.safetensors"))
    return model.eval()


def _digits() -> dict[str, Any]:
    from examples.digits.network import digits_net

    with np.load(ROOT / "calib_data/digits/images.npz") as file:
        images = torch.from_numpy(file["x"])
    return {"model": _trained(digits_net(), "digits"), "data": images.split(32)}


def _keywords() -> dict[str, Any]:
    from examples.keywords.network import keyword_net
    from examples.keywords.sounds import calibration

    return {"model": _trained(keyword_net(), "keywords"), "data": [x for (x,) in calibration()]}


def _detector() -> dict[str, Any]:
    from examples.detector.network import detector
    from examples.detector.scenes import calibration

    return {"model": _trained(detector(), "detector"), "data": calibration()}


def _sentences() -> dict[str, Any]:
    let_torchvision_import()
    from transformers import AutoModel, AutoTokenizer

    folder = ROOT / "examples/sentence_encoder"
    model = AutoModel.from_pretrained(folder / "model", attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    texts = (folder / "calibration.txt").read_text("utf-8").splitlines()
    options = {"padding": "max_length", "max_length": TOKENS, "truncation": True}
    tokens = dict(tokenizer(texts, return_tensors="pt", **options))
    names = ("input_ids", "attention_mask")
    parts = zip(*(tokens[n].split(32) for n in names), strict=True)
    return {"model": model, "data": [dict(zip(names, part, strict=True)) for part in parts]}


EXAMPLES: dict[str, Example] = {
    "digits": _digits,
    "keywords": _keywords,
    "detector": _detector,
    "sentences": _sentences,
}


def torchvision_networks() -> dict[str, Example]:
    """Return a function for each network; none where torchvision is not installed."""
    let_torchvision_import()
    try:
        from torchvision import models
    except ImportError:
        return {}

    def make(name: str) -> dict[str, Any]:
        torch.manual_seed(0)
        model = models.get_model(name, weights=None, **OPTIONS.get(name, {})).eval()
        return {"model": model, "data": torch.randn(16, 3, SIZE, SIZE).split(8)}

    return {name: partial(make, name) for name in VISION}
