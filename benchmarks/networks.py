"""Real trained networks for the benchmarks, from a folder that is not part of the project.

The folder holds `cifar10/` (models.py, weights, images) and `kws/` (model.py, weights, clips); each
network comes as its float module, calibration batches, evaluation inputs and labels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from torch import nn

__all__ = ["NETWORKS", "Network", "load"]


@dataclass(frozen=True)
class Network:
    """calibration, inputs: float32 samples along dimension 0. labels: int64."""

    name: str
    model: nn.Module
    calibration: torch.Tensor
    inputs: torch.Tensor
    labels: np.ndarray


def _cifar(folder: Path, name: str) -> Network:
    home = folder / "cifar10"
    models = _import(home, "models")

    def images(part: str) -> torch.Tensor:
        return models.preprocess(np.load(home / f"{part}_images.npy"))

    labels = np.load(home / "dev_labels.npy")
    net = getattr(models, name)(pretrained=True)
    return Network(name, net, images("calib"), images("dev"), labels)


def _kws(folder: Path, name: str) -> Network:
    home = folder / "kws"
    kws = _import(home, "model")
    inputs, labels = kws.data()
    calibration, evaluation = (np.load(home / f"{p}_indices.npy") for p in ("calib", "eval"))
    net = kws.ds_cnn(pretrained=True)
    return Network(name, net, inputs[calibration], inputs[evaluation], labels[evaluation].numpy())


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
}


def load(folder: Path, name: str) -> Network:
    return NETWORKS[name](folder, name)
