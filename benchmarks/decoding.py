"""Speed of a decoder's files in ONNX Runtime over its float file: one token, and a prompt.

    python benchmarks/decoding.py [--hidden 512,1024,2048] [--prompt 128] [--past 128]
                                  [--layers 16 --tokens 32000] [--steps 16]

Llamas of random weights, one thread. Without options they have two layers and few tokens, so the
figures are those of a layer. Files run in turns,
and each ratio is the median of pairs of one round, so that a busy machine slows both alike. Steps
come `--steps` in a row, as they do where a text is made: one that runs between those of other
models finds nothing of its own in the caches.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import torch
from networks import let_torchvision_import

import qtool
from qtool.backends.onnx.export import write_float
from qtool.evaluation.latency.interleaved_timing import time_files
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache

FORMS: dict[str, dict[str, Any]] = {
    "int4, blocks of 32": {"mode": "weight-only-int4"},
    "int4, blocks of 128": {
        "mode": "weight-only-int4",
        "recipe": [{"op": "linear", "block": 128}],
    },
    "int2, blocks of 64": {"mode": "weight-only-int2", "recipe": [{"op": "linear", "block": 64}]},
    "int2, blocks of 128": {"mode": "weight-only-int2", "recipe": [{"op": "linear", "block": 128}]},
    "dynamic": {"mode": "dynamic", "recover": []},
}


def decoder(hidden: int, layers: int, tokens: int) -> DecoderWithCache:
    let_torchvision_import()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokens,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4 // 128 * 128,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
    )
    return DecoderWithCache(LlamaForCausalLM(config)).eval()


def inputs(path: Path, new: int, past: int, tokens: int) -> list[np.ndarray[Any, Any]]:
    """Of a call on so many new tokens, with so many in the cache."""
    generator = np.random.default_rng(0)
    caches = onnxruntime.InferenceSession(path).get_inputs()[2:]
    sizes = [(1, cache.shape[1], past, cache.shape[3]) for cache in caches]
    found = [generator.integers(0, tokens, (1, new)), np.ones((1, past + new), np.int64)]
    return found + [generator.standard_normal(size).astype(np.float32) for size in sizes]


def measure(hidden: int, folder: Path, options: argparse.Namespace) -> None:
    """Prints a row for each form: its size and its speed beside float, with 95 % intervals."""
    model = decoder(hidden, options.layers, options.tokens)
    if options.attention == "fused":
        model.fuse_attention()
    ids = torch.randint(0, options.tokens, (1, 12))
    batch = model.with_cached_prefix(ids, torch.ones_like(ids), 4)
    captured = qtool.capture_model(model, batch, DYNAMIC)
    files = [write_float(captured.graph, folder / "float.onnx")]
    for index, chosen in enumerate(FORMS.values()):
        files.append(folder / f"{index}.onnx")
        qtool.quantize(captured, [batch], **chosen).export(files[-1])
    calls = ((1, options.past), (options.prompt, 0))
    given = [inputs(files[0], *sizes, options.tokens) for sizes in calls]
    rows = (options.steps, 1)
    step, prompt = (
        time_files(files, each, seconds=options.seconds, in_a_row=row)
        for each, row in zip(given, rows, strict=True)
    )
    for form, file, *found in zip(
        ("float", *FORMS),
        files,
        step.ratios,
        prompt.ratios,
        step.models,
        prompt.models,
        strict=True,
    ):
        texts = [f"{r.median:5.2f}x ({r.low:.2f} to {r.high:.2f})" for r in found[:2]]
        times = "  ".join(f"{spread.median:7.2f}" for spread in found[2:])
        size = file.stat().st_size / 2**20
        print(f"{hidden:6}  {form:20} {size:6.1f}  {texts[0]}  {texts[1]}  {times}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", default="512,1024,2048")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--attention", choices=("fused", "masked"), default="fused")
    parser.add_argument("--tokens", type=int, default=4096, help="that the model knows")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--past", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16, help="of one model in a row")
    parser.add_argument("--seconds", type=float, default=15.0, help="for all forms of a size")
    options = parser.parse_args()
    print(
        "hidden  form                    MiB  step  prompt  ms of a step, of a prompt", flush=True
    )
    for hidden in map(int, options.hidden.split(",")):
        with TemporaryDirectory() as folder:
            measure(hidden, Path(folder), options)


if __name__ == "__main__":
    main()
