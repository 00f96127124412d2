"""Greedy decoding by the integer engine and by ONNX Runtime: equality of all tokens.

    python benchmarks/greedy.py [--steps 1000] [--forms int4,int8] [--width 0]

A prompt, then a token at a time with the cache of the step before. The model is that of
examples/language_model, or with --width a Llama of random weights: 512 wide and 8 layers are 42
million parameters, 768 and 12 are 126. Each engine goes its own way, so one token that differs is
another text from there on; besides tokens, the logits that are equal to the last bit are counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import torch
from networks import let_torchvision_import

import qtool
from examples.language_model.perplexity import HEAD, MODEL, TASK, batches
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache
from qtool.frontends.load_model import load_model

FORMS: dict[str, dict[str, Any]] = {
    "int4": {"mode": "weight-only-int4", "recipe": [HEAD]},
    "int2": {"mode": "weight-only-int2", "recipe": [{"op": "linear", "block": 32}, HEAD]},
    "int8": {
        "mode": "weight-only-int4",
        "recipe": [{"op": "linear", "as": "int8-weights", "block": 32}],
    },
    "dynamic": {"mode": "dynamic", "recover": []},
}
TOKENS, PROMPT = 8192, 8
Arrays = list[np.ndarray[Any, Any]]
Run = Callable[[Arrays], Arrays]


def random_llama(width: int, layers: int) -> DecoderWithCache:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = width // 64
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=width,
        intermediate_size=width * 4,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=4096,
    )
    return DecoderWithCache(LlamaForCausalLM(config)).eval()


def captured_model(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model and the batches that it is calibrated on."""
    if not options.width:
        model = load_model(str(MODEL), task=TASK)
        data = batches("calibration.txt", model)
        return qtool.capture_model(model, next(iter(data)), data.dynamic), data
    model = random_llama(options.width, options.layers)
    model.fuse_attention()
    ids = torch.randint(0, TOKENS, (1, 12))
    batch = model.with_cached_prefix(ids, torch.ones_like(ids), 4)
    return qtool.capture_model(model, batch, DYNAMIC), [batch]


def in_runtime(path: Path) -> tuple[Run, list[Any]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    names = [i.name for i in session.get_inputs()]
    return lambda given: session.run(None, dict(zip(names, given, strict=True))), names


def in_engine(path: Path) -> Run:
    program = lower(path)
    return lambda given: [t.numpy() for t in program(*map(torch.from_numpy, given))]


def greedy(run: Run, prompt: np.ndarray[Any, Any], caches: Arrays) -> Iterator[tuple[int, Any]]:
    """Tokens for ever, each with the logits that it was chosen by."""
    new, length, past = prompt, 0, caches
    while True:
        length += new.shape[1]
        logits, *past = run([new, np.ones((1, length), np.int64), *past])
        new = logits[:, -1:].argmax(-1)
        yield int(new.item()), logits[0, -1]


def compare(path: Path, steps: int, tokens: int) -> str:
    runtime, _ = in_runtime(path)
    inputs = onnxruntime.InferenceSession(path).get_inputs()
    caches = [np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32) for i in inputs[2:]]
    prompt = np.random.default_rng(0).integers(0, tokens, (1, PROMPT))
    ways = [greedy(run, prompt, caches) for run in (in_engine(path), runtime)]
    seconds, same, equal, count = [0.0, 0.0], 0, 0, 0
    texts: list[set[int]] = [set(), set()]
    for _ in range(steps):
        found = []
        for at, way in enumerate(ways):
            start = time.process_time()
            found.append(next(way))
            seconds[at] += time.process_time() - start
            texts[at].add(found[-1][0])
        same += found[0][0] == found[1][0]
        equal, count = equal + int((found[0][1] == found[1][1]).sum()), count + found[0][1].size
    per_step = "{:.1f} and {:.1f}".format(*(1000 * s / steps for s in seconds))
    return (
        f"{same} of {steps} tokens the same ({len(texts[1])} different ones), {equal} of {count} "
        f"logits; CPU ms a step: {per_step}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--forms", default="int4,int8")
    parser.add_argument("--width", type=int, default=0, help="of a Llama of random weights")
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    let_torchvision_import()
    captured, data = captured_model(options)
    tokens = TOKENS if options.width else 512
    for form in options.forms.split(","):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            found = qtool.quantize(captured, data, **FORMS[form]).export(path)
            print(f"{form}: {found.exactness}", flush=True)
            print(f"{form}: {compare(path, options.steps, tokens)}", flush=True)


if __name__ == "__main__":
    main()
