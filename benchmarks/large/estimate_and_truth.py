"""A model converted block by block: the SQNR that the conversion states, and that on new texts.

    python benchmarks/large/estimate_and_truth.py FOLDER SCRATCH [--mode weight-only]

FOLDER is a decoder, such as random_llama.py writes; texts are random tokens. The statement is of
samples that the conversion held out; the truth is of the file in ONNX Runtime, against the float
model in memory, on tokens drawn after those.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from both_ways import DYNAMIC, TASK, sqnr

import qtool
from qtool.frontends.load_model import load_model

BATCH = 4


def texts(samples: int, length: int, words: int, draw: torch.Generator) -> list[dict[str, Any]]:
    """Batches of random tokens."""
    ids = torch.randint(0, words, (samples, length), generator=draw)
    return [
        {"input_ids": part, "attention_mask": torch.ones_like(part)} for part in ids.split(BATCH)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--mode", default="weight-only")
    parser.add_argument("--accuracy", default="fast")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--words", type=int, default=32000)
    parser.add_argument("--block", type=int, default=1 << 27)
    chosen = parser.parse_args()
    draw = torch.Generator().manual_seed(0)
    seen, new = (texts(chosen.samples, chosen.length, chosen.words, draw) for _ in range(2))
    chosen.scratch.mkdir(parents=True, exist_ok=True)
    out, start = chosen.scratch / "model.onnx", time.process_time()
    result = qtool.quantize_by_blocks(
        chosen.folder,
        seen,
        out,
        task=TASK,
        mode=chosen.mode,
        accuracy=chosen.accuracy,
        block=chosen.block,
        dynamic=DYNAMIC,
    )
    spent, stated = time.process_time() - start, result.verification.fidelity.estimate.pooled_db
    truth = sqnr(load_model(chosen.folder, task=TASK), out, new)
    print(f"{chosen.mode}: {spent:.0f} core s, stated {stated:.2f} dB, on new texts {truth:.2f} dB")


if __name__ == "__main__":
    main()
