"""Perplexity at equal bytes: 4-bit weights of qtool and of onnxruntime-genai's builder.

    python benchmarks/language_quality.py [--folder MODEL] [--blocks 32,128] [--python PYTHON]

The model is that of examples/language_model, or a folder whose tokenizer is the example's. In both
tools the layers have 4-bit weights and compute at accuracy level 4, head and table stay in float:
files with the same block, with or without zero points, hold the same number of bytes; what differs
is how the codes are chosen. PYTHON has onnxruntime-genai; without it the rows of the builder are
left out. Texts are those of the example, which no model saw in training.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from networks import let_torchvision_import
from onnx import numpy_helper

import qtool
from examples.language_model.perplexity import LENGTH, MODEL, TASK
from qtool.backends.onnx.export import write_float
from qtool.frontends.data.load_data import load_data
from qtool.frontends.load_model import load_model

BUILDER = ("rtn", "k_quant")
KEPT = "/lm_head/MatMul,/model/embed_tokens/Gather"
FORMS: dict[str, dict[str, Any]] = {
    "nearest, extremes": {"weight_observer": "minmax", "recover": []},
    "nearest, least error": {"weight_observer": "mse", "recover": []},
    "gptq": {"weight_observer": "mse", "recover": ["gptq"]},
    "learned-scales": {"weight_observer": "mse", "recover": ["learned-scales"]},
}
TYPES = {True: "int4", False: "uint4"}  # symmetric, with zero points


def weight_bytes(path: Path) -> float:
    """Bytes of the constants that are neither a table nor float weights of a head."""
    graph = onnx.load(path).graph
    packed = {onnx.TensorProto.INT4, onnx.TensorProto.UINT4}
    names = {name for node in graph.node if node.op_type == "MatMulNBits" for name in node.input}
    names |= {n for node in graph.node if node.op_type == "DequantizeLinear" for n in node.input}
    total = 0.0
    for tensor in graph.initializer:
        if tensor.name in names:
            size = int(np.prod(tensor.dims))
            width = 0.5 if tensor.data_type in packed else numpy_helper.to_array(tensor).itemsize
            total += size * width
    return total


def perplexity(path: Path, data: Any) -> float:
    """exp of the mean cross entropy of the tokens that follow those in the cache; by name, since
    the builder orders caches in its own way."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    total, count = 0.0, 0
    for batch in data:
        inputs = {name: batch[name].numpy() for name in ("input_ids", "attention_mask")}
        for layer, pair in enumerate(batch["past_key_values"]):
            inputs |= {f"past_key_values.{layer}.{k}": t.numpy() for k, t in pair.items()}
        logits = torch.from_numpy(session.run(["logits"], inputs)[0])[:, :-1].flatten(0, 1)
        expected = batch["input_ids"][:, 1:].flatten()
        total += float(torch.nn.functional.cross_entropy(logits, expected, reduction="sum"))
        count += len(expected)
    return math.exp(total / count)


def built(python: str, source: Path, folder: Path, block: int) -> Iterator[tuple[str, bool, Path]]:
    """Yield the files of the builder: algorithm, whether symmetric, path."""
    for algorithm in BUILDER:
        for symmetric in TYPES:
            out = folder / f"{algorithm}-{block}-{symmetric}"
            command = [python, "-m", "onnxruntime_genai.models.builder", "-m", str(source)]
            command += ["-o", str(out), "-p", "int4", "-e", "cpu", "-c", str(folder / "cache")]
            more = {
                "accuracy_level": 4,
                "block_size": block,
                "is_symmetric": str(symmetric).lower(),
            }
            more |= {"algo_config": algorithm, "nodes_to_exclude": KEPT}
            command += ["--extra_options", *(f"{k}={v}" for k, v in more.items())]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                reason = (result.stderr.splitlines() or ["no message"])[-1]
                print(f"builder, {algorithm}: {reason}", flush=True)
            else:
                yield algorithm, symmetric, out / "model.onnx"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=MODEL)
    parser.add_argument("--blocks", default="32,128")
    parser.add_argument("--forms", default="|".join(FORMS), help="with | in between")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    let_torchvision_import()
    model = load_model(options.folder, task=TASK)
    texts = {
        name: load_data(MODEL.parent / f"{name}.txt", 32, model=model, folder=options.folder,
                        max_length=LENGTH)
        for name in ("calibration", "evaluation")
    }  # fmt: skip
    seen, data = texts["calibration"], texts["evaluation"]
    captured = qtool.capture_model(model, next(iter(seen)), seen.dynamic)
    with TemporaryDirectory() as name:
        folder = Path(name)
        plain = perplexity(write_float(captured.graph, folder / "float.onnx"), data)
        print(f"float: {plain:.3f}")
        print("block  zero points  tool     codes                   KiB  perplexity")

        def row(block: int, symmetric: bool, tool: str, codes: str, path: Path) -> None:
            zero = "no" if symmetric else "yes"
            size, lost = weight_bytes(path) / 1024, perplexity(path, data)
            print(f"{block:5}  {zero:11}  {tool:7}  {codes:20} {size:6.1f}  {lost:.3f}", flush=True)

        for block in map(int, options.blocks.split(",")):
            for algorithm, symmetric, path in built(options.python, options.folder, folder, block):
                row(block, symmetric, "builder", algorithm, path)
            for symmetric, kind in TYPES.items():
                for form in options.forms.split("|"):
                    chosen = dict(FORMS[form])
                    rule = {"op": "linear", "block": block, "weights": kind}
                    rule["weight_observer"] = chosen.pop("weight_observer")
                    kept = [
                        {"select": "*lm_head", "as": "float"},
                        {"op": "embedding", "as": "float"},
                    ]
                    path = folder / "model.onnx"
                    made = qtool.quantize(
                        captured, seen, mode="weight-only-int4", recipe=[rule, *kept], **chosen
                    )
                    made.export(path, timing=0)
                    row(block, symmetric, "qtool", form, path)


if __name__ == "__main__":
    main()
