"""Cost of calibration compared with the float forward of the same batches.

    python benchmarks/calibration.py FOLDER [--networks resnet20,resnet50] [--images 5120]

CPU seconds of this process with one torch thread. In each round every contestant runs once, one
after the other, and is divided by the float model's own forward of that round; the median of the
rounds is shown, and the smallest and largest. FOLDER holds the real networks (networks.py);
resnet50 has random weights, images of 224, and needs torchvision. Capturing is not part of it: it
is done once for calibration and conversion, and has a line of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import networks
import torch
from torch import nn

import qtool
from qtool.planning.targets import DEFAULT

OBSERVERS = ("minmax", "percentile", "mse")
LARGE_IMAGES, LARGE_BATCH = 64, 8


def load(folder: Path, name: str, images: int) -> tuple[nn.Module, list[Any], Any]:
    """A network, its batches (images are repeated up to so many), and its dynamic sizes."""
    if name == "resnet50":
        networks.let_torchvision_import()
        from torchvision import models  # only for this network

        torch.manual_seed(0)
        data = torch.randn(min(images, LARGE_IMAGES), 3, 224, 224)
        return models.resnet50(weights=None).eval(), list(data.split(LARGE_BATCH)), None
    network = networks.load(folder, name)
    few = list(network.calibration)
    if not isinstance(few[0], torch.Tensor):
        return network.model, few, network.dynamic
    wanted = -(-images // len(few[0]))
    return network.model, [few[i % len(few)] for i in range(wanted)], None


def forward(model: nn.Module, batches: Sequence[Any]) -> None:
    with torch.inference_mode():
        for batch in batches:
            if isinstance(batch, torch.Tensor):
                model(batch)
            else:
                model(**batch)


def seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(model: nn.Module, batches: Sequence[Any], rounds: int, dynamic: Any) -> None:
    start = time.process_time()
    captured = qtool.capture_model(model, batches[0], dynamic)
    graph, _ = captured.for_target(DEFAULT)
    print(f"  capture {time.process_time() - start:.2f} s", flush=True)
    runs: dict[str, Callable[[], Any]] = {
        "float forward": lambda: forward(model, batches),
        "forward of the captured graph": lambda: forward(graph.module, batches),
    }
    for observer in OBSERVERS:
        runs[observer] = lambda o=observer: qtool.calibrate(captured, batches, observer=o)
    forward(model, batches[:1])
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    spent = []
    for _ in range(rounds):
        taken = {name: seconds(run) for name, run in runs.items()}
        spent.append(taken["float forward"])
        for name, value in taken.items():
            ratios[name].append(value / taken["float forward"])
    print(f"  float forward {median(spent):.2f} s")
    for name, found in list(ratios.items())[1:]:
        print(
            f"  {name:30} {median(found):.2f}  ({min(found):.2f} to {max(found):.2f})", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default="resnet20,resnet50")
    parser.add_argument("--images", type=int, default=5120)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.networks.split(","):
        model, batches, dynamic = load(options.folder, name, options.images)
        print(f"{name}: {len(batches)} batches", flush=True)
        measure(model, batches, options.rounds, dynamic)


if __name__ == "__main__":
    sys.exit(main())
