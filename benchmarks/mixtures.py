"""Mixtures of experts in 4 bits: size, perplexity, speed, and the tokens of two loops.

    python benchmarks/mixtures.py FOLDER [--genai PYTHON] [--steps 600] [--only trained]

Trains a small Mixtral on this project's documentation, as the language model of the examples, and
makes a Mixtral, a Qwen2-MoE and a Qwen3-MoE of random weights. Each is converted by the plain
command, the trained one also rounded to nearest, with the same bytes. PYTHON is an interpreter that
has onnxruntime-genai; both loops continue one prompt by 64 tokens. Takes a quarter of an hour on
one core.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from examples.language_model.train import loss_of, texts
from qtool.backends.onnxruntime.cached_decoder import CachedDecoder

HERE = Path(__file__).parents[1] / "examples/language_model"
PROMPT, TOKENS = [5, 9, 33, 77, 140, 12], 64
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
SMALL = {"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 256}
WIDE = {"hidden_size": 256, "num_hidden_layers": 2, "initializer_range": 0.1}
MOE = {"num_experts": 8, "moe_intermediate_size": 512, "intermediate_size": 512}
RANDOM: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 8, "intermediate_size": 512, "sliding_window": None},
    "Qwen2Moe": {**MOE, "shared_expert_intermediate_size": 256},
    "Qwen3Moe": {**MOE, "head_dim": 64, "norm_topk_prob": True},
}
CONTINUE = """
import json, sys, numpy, onnxruntime_genai as genai
folder, prompt, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
model = genai.Model(folder)
options = genai.GeneratorParams(model)
length = len(prompt) + count
options.set_search_options(max_length=length, min_length=length, do_sample=False)
loop = genai.Generator(model, options)
loop.append_tokens(numpy.array([prompt], numpy.int32))
while not loop.is_done():
    loop.generate_next_token()
print([int(token) for token in loop.get_sequence(0)][len(prompt):])
"""


def model_of(family: str, **sizes: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **sizes)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def train(model: Any, tokenizer: Any, steps: int, length: int = 96, batch: int = 12) -> None:
    """Train in place, with the loss that balances experts."""
    learned, aside = (torch.tensor(tokenizer(text)["input_ids"]) for text in texts())
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        rate = 3e-3 * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 50)
        places = torch.randint(0, len(learned) - length - 1, (batch, 1), generator=generator)
        ids = learned[places + torch.arange(length + 1)]
        made = model(ids[:, :-1], use_cache=False, output_router_logits=True)
        loss = torch.nn.functional.cross_entropy(made.logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + 0.01 * made.aux_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99:
            with torch.no_grad():
                rows = aside[: len(aside) // (length + 1) * (length + 1)].unflatten(
                    0, (-1, length + 1)
                )
                print(f"{step + 1}: {loss:.3f}, aside {float(loss_of(model, rows[:32])):.3f}")


def convert(source: Path, out: Path, *more: str) -> None:
    line = [sys.executable, "-m", "qtool", "quantize", source, "-o", out, "--max-length", "96"]
    line += ["--task", "text-generation-with-past", "--mode", "weight-only-int4"]
    line += ["--data", HERE / "calibration.txt", "--eval-data", HERE / "evaluation.txt"]
    print(out.name, flush=True)
    subprocess.run([*line, *more], check=True)


def plain_loop(path: Path) -> list[int]:
    """Return the most likely tokens behind the prompt; an end of text is one of them."""
    decoder, new, made = CachedDecoder(path, len(PROMPT) + TOKENS, 1), PROMPT, list[int]()
    for _ in range(TOKENS):
        logits = decoder.logits(new)
        logits[SIZES["eos_token_id"]] = -np.inf  # as genai, up to its least length
        new = [int(logits.argmax())]
        made += new
    return made


def compare_loops(folder: Path, python: str) -> None:
    line = [python, "-c", CONTINUE, folder, json.dumps(PROMPT), str(TOKENS)]
    theirs = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    own = plain_loop(next((folder / "onnx").glob("*.onnx")))
    equal = sum(a == b for a, b in zip(own, theirs, strict=True))
    print(f"{folder.name}: {equal} of {TOKENS} tokens of both loops are equal", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--genai", default="")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(HERE / "model")
    made = {"trained": None, **RANDOM}
    for name in [options.only] if options.only else made:
        source, out = options.folder / name, options.folder / f"{name}-int4"
        if not source.exists():
            if name == "trained":
                model = model_of("Mixtral", **SMALL, num_local_experts=8, tie_word_embeddings=True)
                train(model, tokenizer, options.steps)
            else:
                model = model_of(name, **{**WIDE, **RANDOM[name]})
            model.save_pretrained(source)
            tokenizer.save_pretrained(source)
        convert(source, out)
        if name == "trained":
            nearest = options.folder / f"{name}-nearest"
            convert(source, nearest, "--accuracy", "fast")
        if options.genai:
            compare_loops(out, options.genai)


if __name__ == "__main__":
    main()
