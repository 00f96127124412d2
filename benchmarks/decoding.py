"""The files of a decoder beside its float file in ONNX Runtime: a token at a time, and a prompt.

    python benchmarks/decoding.py [--hidden 512,1024,2048] [--prompt 128] [--past 128]

Llamas of random weights, as wide as small ones and with few layers, one thread. Each ratio is the
median of pairs that were run one after the other, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import torch
from networks import let_torchvision_import

import qtool
from qtool.export import write_float
from qtool.sources.decoder import DYNAMIC, Decoder

FORMS: dict[str, dict[str, Any]] = {
    "int4, blocks of 32": {"mode": "weight-only-int4"},
    "int4, blocks of 128": {
        "mode": "weight-only-int4",
        "recipe": [{"op": "linear", "block": 128}],
    },
    "dynamic": {"mode": "dynamic", "recover": []},
}
TOKENS, LAYERS = 4096, 2


def decoder(hidden: int) -> Decoder:
    let_torchvision_import()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4 // 128 * 128,
        num_hidden_layers=LAYERS,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
    )
    return Decoder(LlamaForCausalLM(config)).eval()


def opened(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def inputs(session: onnxruntime.InferenceSession, new: int, past: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    found = {"input_ids": generator.integers(0, TOKENS, (1, new))}
    found["attention_mask"] = np.ones((1, past + new), np.int64)
    for each in session.get_inputs()[2:]:
        shape = (1, each.shape[1], past, each.shape[3])
        found[each.name] = generator.standard_normal(shape).astype(np.float32)
    return found


def paired(one: Any, other: Any, given: dict[str, np.ndarray], seconds: float) -> float:
    """How many times as fast the other session is."""
    ratios, end = [], time.perf_counter() + seconds
    one.run(None, given)
    other.run(None, given)
    while len(ratios) < 5 or time.perf_counter() < end:
        times = []
        for session in (one, other):
            start = time.perf_counter()
            session.run(None, given)
            times.append(time.perf_counter() - start)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", default="512,1024,2048")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--past", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    options = parser.parse_args()
    print("hidden  form                  MiB   step   prompt", flush=True)
    for hidden in map(int, options.hidden.split(",")):
        model = decoder(hidden)
        ids = torch.randint(0, TOKENS, (2, 12))
        batch = model.continued(ids, torch.ones_like(ids), 4)
        captured = qtool.capture_model(model, batch, DYNAMIC)
        with TemporaryDirectory() as folder:
            exact = opened(write_float(captured.graph, Path(folder) / "float.onnx"))
            for form, chosen in FORMS.items():
                path = Path(folder) / "model.onnx"
                qtool.quantize(captured, [batch], **chosen).export(path)
                found = opened(path)
                sizes = ((1, options.past), (options.prompt, 0))
                ratios = [paired(exact, found, inputs(exact, *s), options.seconds) for s in sizes]
                size = path.stat().st_size / 2**20
                print(f"{hidden:6}  {form:20} {size:5.1f} {ratios[0]:5.2f}x {ratios[1]:6.2f}x")


if __name__ == "__main__":
    main()
