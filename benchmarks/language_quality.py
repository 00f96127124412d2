"""Perplexity at equal bytes: weights of few bits of qtool and of onnxruntime-genai's builder.

    PYTHONPATH=. python benchmarks/language_quality.py [--blocks 32] [--python PYTHON]
    PYTHONPATH=. python benchmarks/language_quality.py --folder MODELS/llama --texts MODELS

The model is that of examples/language_model, or another folder with texts for it, as those of
language_models.py. In both tools the layers have 4-bit weights and compute at accuracy level 4,
head and table stay in float: files with the same block, with or without zero points, hold the same
number of bytes; what differs is how the codes are chosen. The builder has no fewer bits. For 3 bits
the runtime has no kernel: they are simulated in torch, with inputs in float. PYTHON has
onnxruntime-genai; without it the rows of the builder are left out. Texts for evaluation are those
that the model did not see in training; MODELS/calibration.txt is from those it did see.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from measured import session
from onnx import numpy_helper
from realdata import let_torchvision_import
from torch.utils import _pytree as pytree

import qtool
from examples.language_model.perplexity import LENGTH, MODEL, TASK
from qtool.api.data import load_data
from qtool.backends.onnx.export import write_float
from qtool.core.schemes import WEIGHTS, Scales, Scheme, When
from qtool.core.types import QType
from qtool.frontends.load_model import load_model
from qtool.planning import targets
from qtool.planning.recipe import rule as rules

Logits = Callable[[Any], torch.Tensor]
"""A batch -> logits [texts, tokens, vocabulary]."""

BUILDER = ("rtn", "k_quant")
KEPT = "/lm_head/MatMul,/model/embed_tokens/Gather"
FORMS: dict[str, dict[str, Any]] = {
    "nearest, extremes": {"weight_observer": "minmax", "recover": []},
    "nearest, least error": {"weight_observer": "mse", "recover": []},
    "gptq": {"weight_observer": "mse", "recover": ["gptq"]},
    "learned-scales": {"weight_observer": "mse", "recover": ["learned-scales"]},
    "gptq, learned-scales": {"weight_observer": "mse", "recover": ["gptq", "learned-scales"]},
}
SIMULATED = {"int3": QType("int3", -4, 3, torch.int8), "uint3": QType("uint3", 0, 7, torch.uint8)}
TARGET = "onnxruntime-simulated"


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


def in_runtime(path: Path) -> Logits:
    """Logits by ONNX Runtime; by name, since the builder orders caches in its own way."""
    runtime = session(path)

    def logits(batch: Any) -> torch.Tensor:
        inputs = {name: batch[name].numpy() for name in ("input_ids", "attention_mask")}
        for layer, pair in enumerate(batch["past_key_values"]):
            inputs |= {f"past_key_values.{layer}.{k}": t.numpy() for k, t in pair.items()}
        return torch.from_numpy(runtime.run(["logits"], inputs)[0])

    return logits


def simulated(model: qtool.QuantizedModel) -> Logits:
    """Logits by fake quantization, whose inputs are float."""

    def logits(batch: Any) -> torch.Tensor:
        with torch.no_grad():
            return pytree.tree_leaves(model(**batch))[0]

    return logits


def kib(path: Path) -> str:
    return f"{weight_bytes(path) / 1024:.1f}"


def measure(logits: Logits, plain: Logits, data: Any) -> tuple[float, float]:
    """Perplexity of the tokens that follow those in the cache, and the mean divergence of their
    distribution from that of the float model (Kullback-Leibler), in thousandths of a nat."""
    entropy, divergence = [], []
    for batch in data:
        predicted, exact = (
            run(batch)[:, :-1].flatten(0, 1).double().log_softmax(-1) for run in (logits, plain)
        )
        expected = batch["input_ids"][:, 1:].reshape(-1, 1)
        entropy.append(-predicted.gather(1, expected))
        divergence.append((exact.exp() * (exact - predicted)).sum(-1))
    return math.exp(torch.cat(entropy).mean()), 1000 * float(torch.cat(divergence).mean())


def allow_3_bits() -> None:
    """Register a target with kernels for 3 bits, which exist in simulation only."""
    known = {**WEIGHTS, **SIMULATED}
    rules.WEIGHTS, rules._KNOWN = known, {**rules._KNOWN, "weights": known}
    real = targets.target("onnxruntime")
    linear = real.kernels["linear"]
    sizes = (32, 128, Scales.CHANNEL)
    added = [Scheme(When.NEVER, weights=t, scales=n) for t in SIMULATED.values() for n in sizes]
    schemes = (*linear.schemes, *added)
    kernels = {**real.kernels, "linear": replace(linear, schemes=schemes)}
    qtool.register_target(replace(real, name=TARGET, kernels=kernels))


def built(python: str, source: Path, folder: Path, block: int) -> Iterator[tuple[str, bool, Path]]:
    """Yield the files of the builder: algorithm, whether symmetric, path."""
    for algorithm in BUILDER:
        for symmetric in (True, False):
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


@dataclass(frozen=True)
class Cell:
    """Weights of a file: their bits, the length of blocks or "channel", whether without zero
    points."""

    bits: int
    block: int | str
    symmetric: bool

    def __str__(self) -> str:
        return f"{self.bits:4}  {self.block:>7}  {'no' if self.symmetric else 'yes':11}"


def quantized(captured: Any, seen: Any, cell: Cell, form: str) -> qtool.QuantizedModel:
    """Quantize the layers of a model; head and table stay in float."""
    chosen = dict(FORMS[form])
    observer = chosen.pop("weight_observer")
    kind = f"int{cell.bits}" if cell.symmetric else f"uint{cell.bits}"
    recipe = [
        {"op": "linear", "block": cell.block, "weights": kind, "weight_observer": observer},
        {"select": "*lm_head", "as": "float"},
        {"op": "embedding", "as": "float"},
    ]
    chosen |= {"target": TARGET if cell.bits == 3 else "onnxruntime", "mode": "weight-only-int4"}
    return qtool.quantize(captured, seen, recipe=recipe, **chosen)


def rows(
    options: argparse.Namespace, captured: Any, seen: Any, folder: Path
) -> Iterator[tuple[Cell, str, str, str, Logits]]:
    """Yield cell, tool, how codes are chosen, KiB, and what computes logits."""
    zeros = [name == "no" for name in options.zero_points.split(",")]
    blocks = [int(b) if b.isdigit() else b for b in options.blocks.split(",")]
    for bits, block in product(map(int, options.bits.split(",")), blocks):
        if bits == 4 and isinstance(block, int):
            for algorithm, symmetric, path in built(options.python, options.folder, folder, block):
                if symmetric in zeros:
                    cell = Cell(bits, block, symmetric)
                    yield cell, "builder", algorithm, kib(path), in_runtime(path)
        for symmetric, form in product(zeros, filter(None, options.forms.split("|"))):
            cell = Cell(bits, block, symmetric)
            model = quantized(captured, seen, cell, form)
            if bits == 3:
                yield cell, "qtool", form, "", simulated(model)
                continue
            path = folder / "model.onnx"
            model.export(path, timing=0)
            yield cell, "qtool", form, kib(path), in_runtime(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=MODEL)
    parser.add_argument("--texts", type=Path, default=MODEL.parent, help="folder of the texts")
    parser.add_argument("--bits", default="4")
    parser.add_argument("--blocks", default="32,128", help="or channel")
    parser.add_argument("--zero-points", default="no,yes")
    parser.add_argument("--forms", default="|".join(FORMS), help="with | in between")
    parser.add_argument("--python", default=sys.executable)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    let_torchvision_import()
    allow_3_bits()
    model = load_model(options.folder, task=TASK)
    seen, data = (
        load_data(options.texts / f"{name}.txt", 32, model=model, folder=options.folder,
                  max_length=LENGTH)
        for name in ("calibration", "evaluation")
    )  # fmt: skip
    captured = qtool.capture_model(model, next(iter(seen)), seen.dynamic)
    with TemporaryDirectory() as name:
        folder = Path(name)
        plain = in_runtime(write_float(captured.graph, folder / "float.onnx"))
        print(f"float: {measure(plain, plain, data)[0]:.3f}")
        print(
            "bits    block  zero points  tool     codes                        KiB  perplexity  KL"
        )
        for cell, tool, codes, size, logits in rows(options, captured, seen, folder):
            lost, divergence = measure(logits, plain, data)
            print(
                f"{cell}  {tool:7}  {codes:25} {size:>6}  {lost:10.3f}  {divergence:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
