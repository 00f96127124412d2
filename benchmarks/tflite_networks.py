"""The networks of benchmarks/tflite.py: this project's, trained ones of a folder, and libraries'.

Those of libraries have random weights; torchvision and timm (`pip install --no-deps`) may be
absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import networks
import numpy as np
import torch
from networks import Network, let_torchvision_import

__all__ = ["Make", "all_networks"]

ROOT = Path(__file__).parents[1]
Make = Callable[[], Network]

IMAGES, TEXTS, TOKENS = 1000, 192, 64
"""Samples of the evaluation data that are run, and tokens of a text: a file has one length."""
FIRST = 200
"""Samples of the first batch."""
VISION = ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5")
VISION += ("efficientnet_b0", "mnasnet0_5", "regnet_y_400mf", "densenet121", "googlenet")
VISION += ("convnext_tiny", "vit_b_16")
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "googlenet": {"init_weights": True, "aux_logits": False},
    "vit_b_16": {"image_size": 64},
}
TIMM = ("ghostnet_050", "tf_efficientnet_lite0", "mobilenetv4_conv_small", "repvgg_a0")
TIMM += ("cs3darknet_s", "mixer_s32_224")
_SIZE, _SIZES = 64, {"mixer_s32_224": 224}


def all_networks(folder: Path | None) -> dict[str, Make]:
    """Return a function for each network; those of `folder` as benchmarks/networks.py has them."""
    own = {"digits": digits, "keywords": keywords, "detector": detector, "sentences": sentences}
    made: dict[str, Make] = dict(own)
    if folder is not None:
        made |= {name: partial(trained, folder, name) for name in networks.NETWORKS}
    made |= {name: partial(_vision, name) for name in VISION if _is_here("torchvision")}
    made |= {f"timm {name}": partial(_timm, name) for name in TIMM if _is_here("timm")}
    return made


def _is_here(library: str) -> bool:
    let_torchvision_import()
    try:
        import_module(library)
    except ImportError:
        return False
    return True


def _weights(model: torch.nn.Module, example: str) -> torch.nn.Module:
    from safetensors.torch import load_file

    model.load_state_dict(load_file(ROOT / "examples" / example / "weights.safetensors"))
    return model.eval()


def digits() -> Network:
    from examples.digits.network import digits_net

    images = torch.from_numpy(np.load(ROOT / "calib_data/digits/images.npz")["x"]).split(32)
    new = torch.from_numpy(np.load(ROOT / "examples/digits/eval.npz")["x"])
    return Network("digits", _weights(digits_net(), "digits"), images, [new], images[0])


def keywords() -> Network:
    from examples.keywords.network import keyword_net
    from examples.keywords.sounds import calibration, sounds

    batches = [x for (x,) in calibration()]
    new = sounds(FIRST, seed=3)[0]
    return Network("keywords", _weights(keyword_net(), "keywords"), batches, [new], batches[0])


def detector() -> Network:
    from examples.detector.network import detector as network
    from examples.detector.scenes import calibration, evaluation

    batches = calibration()
    return Network(
        "detector", _weights(network(), "detector"), batches, evaluation()[:2], batches[0]
    )


def sentences() -> Network:
    let_torchvision_import()
    from transformers import AutoModel, AutoTokenizer

    folder = ROOT / "examples/sentence_encoder"
    model = AutoModel.from_pretrained(folder / "model", attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")

    def batches(kind: str) -> list[dict[str, torch.Tensor]]:
        texts = (folder / f"{kind}.txt").read_text("utf-8").splitlines()
        options = {"padding": "max_length", "max_length": TOKENS, "truncation": True}
        made = dict(tokenizer(texts, return_tensors="pt", **options))
        names = ("input_ids", "attention_mask")
        parts = zip(*(made[n].split(32) for n in names), strict=True)
        return [dict(zip(names, part, strict=True)) for part in parts]

    calibration = batches("calibration")
    return Network("sentences", model, calibration, batches("evaluation")[:2], calibration[0])


def trained(folder: Path, name: str) -> Network:
    """Return a network of the folder, with as much of its evaluation data as is run here."""
    network = networks.load(folder, name)
    calibration, data = list(network.calibration), list(network.data)
    if network.dynamic is not None:  # texts
        calibration, data = ([_of_one_length(b) for b in part] for part in (calibration, data))
        data = data[:: max(1, len(data) // (TEXTS // len(data[0]["input_ids"])))]
    else:
        data = list(torch.cat(data)[:IMAGES].split(FIRST))
    return replace(network, calibration=calibration, data=data, dynamic=None)


def _of_one_length(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tokens and their mask cut, or padded with 0, to one length."""
    size = (0, TOKENS)
    padded = {k: torch.nn.functional.pad(v, size)[:, :TOKENS] for k, v in batch.items()}
    return {k: v.contiguous() for k, v in padded.items()}


def _vision(name: str) -> Network:
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None, **OPTIONS.get(name, {})).eval()
    return _random_images(name, model, _SIZE)


def _timm(name: str) -> Network:
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=100).eval()
    return _random_images(name, model, _SIZES.get(name, _SIZE))


def _random_images(name: str, model: torch.nn.Module, size: int) -> Network:
    images = torch.randn(16, 3, size, size).split(8)
    return Network(name, model, images, [torch.randn(4, 3, size, size)], images[0])
