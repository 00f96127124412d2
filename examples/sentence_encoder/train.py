"""Trains the small sentence encoder of the tutorial on this project's own documentation.

    python -m examples.sentence_encoder.train examples/sentence_encoder/model

A DistilBERT of 0.15 M parameters over the parts of words of the language model. It learns that a
piece of a passage belongs to it and to no other; the mean of its outputs is then what a text is
about. Takes two minutes on one core. It writes the folder as save_pretrained does, and beside it
passages to calibrate with, and others to measure on, from files kept aside.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import torch
from transformers import DistilBertConfig, DistilBertModel, PreTrainedTokenizerFast

from examples.language_model.train import lines, texts
from examples.sentence_encoder.retrieval import PIECE, pooled

TOKENIZER = Path(__file__).parents[1] / "language_model" / "model"
CALIBRATION, EVALUATION = 128, 256  # passages
PASSAGE, LENGTH = 160, 80  # characters and tokens of a passage, at most
BATCH, STEPS, RATE, SHARPNESS = 96, 400, 3e-3, 20.0


def model_of(tokens: int) -> DistilBertModel:
    torch.manual_seed(0)
    return DistilBertModel(
        DistilBertConfig(
            vocab_size=tokens,
            dim=64,
            hidden_dim=256,
            n_layers=2,
            n_heads=4,
            max_position_embeddings=256,
            pad_token_id=0,
            dropout=0.0,
            attention_dropout=0.0,
        )
    )


def train(model: DistilBertModel, tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.05)
    generator, start = torch.Generator().manual_seed(0), time.monotonic()
    for step in range(STEPS):
        warm = min(1.0, (step + 1) / 40)
        for group in optimizer.param_groups:
            group["lr"] = RATE * warm * (0.02 + 0.98 * (1 + math.cos(math.pi * step / STEPS)) / 2)
        places = torch.randint(0, len(text) - PASSAGE, (BATCH,), generator=generator).tolist()
        inside = torch.randint(0, PASSAGE - PIECE, (BATCH,), generator=generator).tolist()
        asked = [text[at + by : at + by + PIECE] for at, by in zip(places, inside, strict=True)]
        known = [text[at : at + PASSAGE] for at in places]
        one, other = (embedded(model, tokenizer, t) for t in (asked, known))
        alike = SHARPNESS * one @ other.T
        own = torch.arange(BATCH)
        loss = sum(torch.nn.functional.cross_entropy(a, own) for a in (alike, alike.T)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 40 == 39:
            right = float((alike.argmax(1) == own).float().mean())
            seconds = time.monotonic() - start
            print(f"{step + 1}: {loss.item():.3f}, {right:.1%} found, {seconds:.0f} s", flush=True)


def embedded(
    model: DistilBertModel, tokenizer: PreTrainedTokenizerFast, given: list[str]
) -> torch.Tensor:
    batch = tokenizer(given, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    return pooled(model(**batch).last_hidden_state, batch["attention_mask"])


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    learned, aside = texts()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TOKENIZER)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.model_max_length = LENGTH
    model = model_of(len(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    train(model, tokenizer, " ".join(learned.split()))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    found = {"calibration": (learned, CALIBRATION), "evaluation": (aside, EVALUATION)}
    for name, (text, count) in found.items():
        (folder.parent / f"{name}.txt").write_text(lines(text, count, PASSAGE), "utf-8")


if __name__ == "__main__":
    main()
