"""Writes a Llama with random weights as a folder of a model hub, layer by layer: config.json, and
safetensors in several files with their index.

    python benchmarks/large/random_llama.py FOLDER --width 2048 --layers 32
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

HEAD = 64


def tensors(
    width: int, inner: int, layers: int, few: int, words: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Of each file: the weights of a layer, or of the ends. Channels have sizes as different as
    those of trained networks, so that rounding has something to gain."""
    generator = torch.Generator().manual_seed(0)

    def matrix(out: int, into: int) -> torch.Tensor:
        widths = torch.exp(0.5 * torch.randn(into, generator=generator))
        return torch.randn(out, into, generator=generator) * widths / into**0.5

    def norm() -> torch.Tensor:
        return torch.exp(0.5 * torch.randn(width, generator=generator))

    yield {"model.embed_tokens.weight": torch.randn(words, width, generator=generator) * 0.3}
    for i in range(layers):
        at = f"model.layers.{i}"
        yield {
            f"{at}.self_attn.q_proj.weight": matrix(width, width),
            f"{at}.self_attn.k_proj.weight": matrix(few, width),
            f"{at}.self_attn.v_proj.weight": matrix(few, width),
            f"{at}.self_attn.o_proj.weight": matrix(width, width),
            f"{at}.mlp.gate_proj.weight": matrix(inner, width),
            f"{at}.mlp.up_proj.weight": matrix(inner, width),
            f"{at}.mlp.down_proj.weight": matrix(width, inner),
            f"{at}.input_layernorm.weight": norm(),
            f"{at}.post_attention_layernorm.weight": norm(),
        }
    yield {"model.norm.weight": norm(), "lm_head.weight": matrix(words, width)}


def write(folder: Path, width: int, layers: int, words: int, dtype: str = "float32") -> str:
    """The folder; says what it is."""
    folder.mkdir(parents=True, exist_ok=True)
    inner, few = width * 11 // 4, max(HEAD, width // 8)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": few // HEAD,
        "vocab_size": words,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    count, index, total = layers + 2, {}, 0
    for i, held in enumerate(tensors(width, inner, layers, few, words), 1):
        name = f"model-{i:05}-of-{count:05}.safetensors"
        save_file({k: t.to(getattr(torch, dtype)) for k, t in held.items()}, folder / name)
        index |= dict.fromkeys(held, name)
        total += sum(t.numel() for t in held.values())
    listed = {"metadata": {"total_size": 4 * total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed))
    return f"{folder}: {total / 1e9:.3f} billion parameters in {count} files"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--words", type=int, default=32000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    print(write(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
