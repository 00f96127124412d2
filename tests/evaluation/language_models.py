"""Tiny models of texts, as files: a causal one, and one whose tokens see each other."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

import qtool

VOCABULARY = 12
DYNAMIC = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "sequence"}}


class Tagger(nn.Module):
    """Logits for each token, of the mean of the embeddings of all tokens, or of those before it."""

    def __init__(self, causal: bool, noise: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.causal = causal
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.head = nn.Linear(16, VOCABULARY)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
            parameter.data += noise * torch.randn(parameter.shape, generator=generator)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, Any]:
        mask = attention_mask[:, :, None].float()
        x = self.embed(input_ids) * mask
        if self.causal:
            mean = x.cumsum(1) / mask.cumsum(1).clamp(min=1)
        else:
            mean = x.sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        return {"logits": self.head(x + mean)}


def texts(sizes: tuple[int, ...] = (3, 2), length: int = 9) -> list[dict[str, torch.Tensor]]:
    """Batches of random tokens; the first text of each batch has padding at the end."""
    generator = torch.Generator().manual_seed(1)
    batches = []
    for size in sizes:
        mask = torch.ones(size, length, dtype=torch.int64)
        mask[0, length - 3 :] = 0
        ids = torch.randint(0, VOCABULARY, (size, length), generator=generator)
        batches.append({"input_ids": ids, "attention_mask": mask})
    return batches


def write_tagger(path: Path, causal: bool = True, noise: float = 0.0) -> Path:
    captured = qtool.capture_model(Tagger(causal, noise).eval(), texts()[0], DYNAMIC)
    return captured.export_float(path)
