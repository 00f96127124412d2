"""What the sentence encoder is worth: how often a piece of a passage finds its passage.

    qtool report ... --eval examples.sentence_encoder.retrieval:found

among all passages of evaluation.txt, which come from files that it was not trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoTokenizer

__all__ = ["PIECE", "found", "pieces", "pooled"]

HERE = Path(__file__).parent
PIECE = 50  # characters


def pooled(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens of a text, of length one: [texts, tokens, width] -> [texts,
    width]."""
    kept = mask[..., None].to(states.dtype)
    return F.normalize((states * kept).sum(1) / kept.sum(1), dim=1)


def pieces(passages: Sequence[str]) -> list[str]:
    """The middle of each."""
    return [p[len(p) // 2 - PIECE // 2 :][:PIECE] for p in passages]


def found(model: Callable[..., Any]) -> np.ndarray[Any, Any]:
    """For each passage whether it is the one most like its piece."""
    tokenizer = AutoTokenizer.from_pretrained(HERE / "model")
    passages = (HERE / "evaluation.txt").read_text("utf-8").splitlines()
    asked, known = (_embedded(model, tokenizer, t) for t in (pieces(passages), passages))
    best = (asked @ known.T).argmax(1)
    return (best == torch.arange(len(best))).numpy().astype(np.float64)


def _embedded(model: Callable[..., Any], tokenizer: Any, texts: Sequence[str]) -> torch.Tensor:
    batch = dict(tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt"))
    states = model(**batch)
    return pooled(states, batch["attention_mask"])
