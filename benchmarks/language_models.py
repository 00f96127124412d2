"""Train the small language models of language_quality.py.

    PYTHONPATH=. python benchmarks/language_models.py FOLDER [--models gemma,llama] [--minutes 8]

Texts are the docstrings of packages in use; one file in eight is for evaluation, of which
FOLDER/evaluation.txt has lines, FOLDER/calibration.txt has lines of the others. Each model has
FOLDER/NAME, as save_pretrained writes it. MINUTES is processor time for each model, on one thread:
the number of steps follows from it, so that figures differ between machines.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from examples.language_model.train import docstrings, lines, loss_of, tokenizer_of

PACKAGES = ("networkx", "numpy", "sympy")
TOKENS, LENGTH, BATCH, RATE, WARM = 1024, 128, 8, 2e-3, 50
ASIDE, LINES = 8, 128  # one file in so many; lines of each text
SMALLEST = 200  # characters of a docstring
COMMON: dict[str, Any] = {
    "vocab_size": TOKENS + 8,  # genai's builder takes a layer of equal size for the head
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def llama() -> Any:
    """5.2 million parameters, a head of its own."""
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, tie_word_embeddings=False, **COMMON))


def gemma() -> Any:
    """4.0 million parameters; GELU, one head of keys and values, the table is the head."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "head_dim": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1}
    return GemmaForCausalLM(GemmaConfig(**sizes, **heads, **COMMON))


def qwen3() -> Any:
    """1.0 million parameters; norms of queries and keys, a head of its own."""
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, tie_word_embeddings=False, **COMMON))


MODELS: dict[str, Callable[[], Any]] = {"gemma": gemma, "llama": llama, "qwen3": qwen3}


def texts() -> Iterator[str]:
    """The docstrings of each file of the packages, on one line."""
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            try:
                long = [d for d in docstrings(path) if len(d) >= SMALLEST]
            except SyntaxError:  # of a newer Python
                continue
            if long:
                yield " ".join(" ".join(long).encode("ascii", "ignore").decode().split())


def train(model: Any, ids: torch.Tensor, minutes: float) -> None:
    """ids: int64 [tokens]. The rate follows a cosine of the processor time."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.1)
    generator, start, step, done = torch.Generator().manual_seed(0), time.process_time(), 0, 0.0
    while done < 1:
        rate = (
            RATE * min(1.0, (step + 1) / WARM) * (0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2)
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        places = torch.randint(0, len(ids) - LENGTH - 1, (BATCH, 1), generator=generator)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, ids[places + torch.arange(LENGTH + 1)])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step, done = step + 1, (time.process_time() - start) / (60 * minutes)
        if step % 100 == 0:
            print(f"{step}: {loss.item():.3f}, {100 * done:.0f} %", flush=True)
    print(f"{step} steps", flush=True)


def prepare(folder: Path) -> tuple[PreTrainedTokenizerFast, torch.Tensor]:
    """Write the texts; return the tokenizer and the tokens to learn."""
    files = list(texts())
    aside = files[::ASIDE]
    learned = [text for i, text in enumerate(files) if i % ASIDE]
    tokenizer = tokenizer_of("\n".join(learned[::4]), TOKENS)
    ids = torch.cat([torch.tensor(each) for each in tokenizer(learned)["input_ids"]])
    print(f"{sum(map(len, learned))} characters, {len(ids)} tokens", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("calibration", learned), ("evaluation", aside)):
        (folder / f"{name}.txt").write_text(lines(" ".join(part), LINES), "utf-8")
    return tokenizer, ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--minutes", type=float, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer, ids = prepare(options.folder)
    for name in options.models.split(","):
        torch.manual_seed(0)
        model = MODELS[name]()
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters", flush=True)
        train(model, ids, options.minutes)
        model.save_pretrained(options.folder / name)
        tokenizer.save_pretrained(options.folder / name)


if __name__ == "__main__":
    main()
