"""Models that fit into memory, converted in memory and block by block: SQNR on new texts.

    python benchmarks/large/both_ways.py [decoder] [llama] [--modes weight-only-int4 weight-only]

`decoder` is the language model of the examples on its texts, `llama` one of random weights on
random tokens. Each file runs in ONNX Runtime on texts that calibration has not seen; the estimate
is what the conversion states, on samples that it held out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from random_llama import write

import qtool
from qtool.frontends.data.load_data import load_data
from qtool.frontends.load_model import load_model

EXAMPLE = Path(__file__).parents[2] / "examples/language_model"
TASK = "text-generation"
DYNAMIC = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask")}
LENGTH, BLOCK = 64, 1 << 20
WORDS = 1000

Texts = tuple[list[Any], list[Any]]
"""Batches to calibrate with, and new ones."""


def decoder(_: Path) -> tuple[Path, Texts]:
    folder = EXAMPLE / "model"
    model = load_model(folder, task=TASK)
    how: dict[str, Any] = {"model": model, "folder": folder, "max_length": LENGTH}
    sides = [
        load_data(EXAMPLE / f"{name}.txt", 32, **how) for name in ("calibration", "evaluation")
    ]
    return folder, (list(sides[0]), list(sides[1]))


def llama(place: Path) -> tuple[Path, Texts]:
    write(place / "llama", 256, 4, WORDS)
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, WORDS, (32, LENGTH), generator=draw) for _ in range(6)]
    batches = [{"input_ids": each, "attention_mask": torch.ones_like(each)} for each in ids]
    return place / "llama", (batches[:4], batches[4:])


MODELS = {"decoder": decoder, "llama": llama}


def sqnr(model: Any, file: Path, texts: Iterable[Any]) -> float:
    """SQNR of a file's logits, in dB."""
    session, noise, power = ort.InferenceSession(file), 0.0, 0.0
    for batch in texts:
        with torch.no_grad():
            exact = model(**batch).logits.double().numpy()
        logits = session.run(["logits"], {name: t.numpy() for name, t in batch.items()})[0]
        noise += float(np.square(logits - exact).sum())
        power += float(np.square(exact).sum())
    return float(10 * np.log10(power / noise))


def compare(name: str, mode: str, accuracy: str, block: int) -> None:
    """Print a row of the table."""
    with TemporaryDirectory() as place:
        folder, (seen, new) = MODELS[name](Path(place))
        model: Any = load_model(folder, task=TASK)
        how: dict[str, Any] = {"mode": mode, "accuracy": accuracy, "dynamic": DYNAMIC}
        one, other, start = (
            Path(place) / "one.onnx",
            Path(place) / "other.onnx",
            time.process_time(),
        )
        memory = qtool.quantize(model, seen, **how)
        memory.export(one)
        middle = time.process_time()
        blocks = qtool.quantize_by_blocks(folder, seen, other, task=TASK, block=block, **how)
        seconds = middle - start, time.process_time() - middle
        results = memory.fidelity, blocks.verification.fidelity
        estimates = [each.estimate.pooled_db for each in results]
        truths = [sqnr(model, file, new) for file in (one, other)]
        cells = [
            f"{estimate:.2f} | {truth:.2f} | {spent:.0f} s"
            for estimate, truth, spent in zip(estimates, truths, seconds, strict=True)
        ]
        rest = f"{truths[1] - truths[0]:+.2f} | {sqnr(model, other, seen):.2f}"
        print(f"| {name} | {mode} | {accuracy} | {' | '.join(cells)} | {rest} |", flush=True)
        for note in dict.fromkeys((*memory.notes, *blocks.notes)):
            print(f"  {note}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--modes", nargs="*", default=["weight-only-int4", "weight-only"])
    parser.add_argument("--accuracy", nargs="*", default=["balanced"])
    parser.add_argument("--block", type=int, default=BLOCK, help="bytes of weights in float32")
    chosen = parser.parse_args()
    for name in chosen.models:
        for mode in chosen.modes:
            for accuracy in chosen.accuracy:
                compare(name, mode, accuracy, chosen.block)


if __name__ == "__main__":
    main()
