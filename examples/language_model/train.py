"""Trains the small language model of the tutorial on this project's own documentation.

    python -m examples.language_model.train examples/language_model/model

A Llama of 0.2 M parameters over pieces of words, on the pages in docs/ and the docstrings of the
library; one file in eight is kept aside. Takes ten minutes on one core. It writes the folder as
save_pretrained does, and beside it text to calibrate with and text to measure on.
"""

from __future__ import annotations

import ast
import math
import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[2]
TOKENS, LENGTH, BATCH, STEPS, RATE = 512, 128, 24, 2000, 4e-3
KEPT_ASIDE = 8  # one file in so many
CALIBRATION, EVALUATION = 128, 96  # lines of LINE characters
LINE = 300
END = "<end>"


def texts() -> tuple[str, str]:
    """What is learned, and what is kept aside."""
    pages = [p.read_text("utf-8") for p in sorted(ROOT.glob("docs/*.md"))]
    pages += ["\n\n".join(docstrings(p)) for p in sorted(ROOT.glob("qtool/**/*.py"))]
    found = [p.encode("ascii", "ignore").decode() for p in pages]
    aside = found[::KEPT_ASIDE]
    learned = [p for i, p in enumerate(found) if i % KEPT_ASIDE]
    return "\n\n".join(learned), "\n\n".join(aside)


def docstrings(path: Path) -> list[str]:
    """Return the docstrings of a file of Python."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return [d for n in nodes if isinstance(n, kinds) and (d := ast.get_docstring(n)) is not None]


def tokenizer_of(text: str, tokens: int = TOKENS) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=tokens,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(text.splitlines(keepends=True), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=END)


def model_of() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=TOKENS,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


def train(model: LlamaForCausalLM, ids: torch.Tensor, aside: torch.Tensor) -> None:
    """ids, aside: int64 [tokens]."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.1)
    generator, start = torch.Generator().manual_seed(0), time.monotonic()
    for step in range(STEPS):
        warm = min(1.0, (step + 1) / 100)
        for group in optimizer.param_groups:
            group["lr"] = RATE * warm * (0.05 + 0.95 * (1 + math.cos(math.pi * step / STEPS)) / 2)
        places = torch.randint(0, len(ids) - LENGTH - 1, (BATCH, 1), generator=generator)
        batch = ids[places + torch.arange(LENGTH + 1)]
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99:
            rows = aside[: len(aside) // LENGTH * LENGTH].reshape(-1, LENGTH)[:64]
            with torch.no_grad():
                kept = float(loss_of(model, rows))
            seconds = time.monotonic() - start
            print(f"{step + 1}: {loss.item():.3f}, aside {kept:.3f}, {seconds:.0f} s", flush=True)


def loss_of(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def lines(text: str, count: int, length: int = LINE) -> str:
    """Lines of so many characters from all over a text."""
    plain = " ".join(text.split())
    starts = range(0, len(plain) - length, (len(plain) - length) // count)
    return "\n".join(plain[s : s + length].strip() for s in starts[:count]) + "\n"


def main() -> None:
    folder = Path(sys.argv[1])
    learned, aside = texts()
    tokenizer = tokenizer_of(learned)
    ids, kept = (torch.tensor(tokenizer(t)["input_ids"]) for t in (learned, aside))
    print(f"{len(learned)} characters, {len(ids)} tokens; aside {len(kept)}")
    model = model_of()
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    train(model, ids, kept)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder.parent / "calibration.txt").write_text(lines(learned, CALIBRATION), "utf-8")
    (folder.parent / "evaluation.txt").write_text(lines(aside, EVALUATION), "utf-8")


if __name__ == "__main__":
    main()
