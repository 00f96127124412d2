"""A network like a ResNet whose tensors between blocks are larger than the memory that it may have.

    python benchmarks/large/activations.py SCRATCH --images 320 --limit 700

The images are made when they are asked for, and never are all of them in memory.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from command import measured
from safetensors.torch import save_file
from torch import nn

import qtool

WIDTH, SIZE, BATCH = 64, 96, 8
BLOCK = 1 << 20


class Residual(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for _ in range(2))
        self.beside = nn.Conv2d(into, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.beside(x) + self.norms[1](self.second(y)))


def network() -> nn.Module:
    """Without a pool at its beginning, so that its tensors are large."""
    stages = [Residual(WIDTH << i >> (i > 0), WIDTH << i, 1 + (i > 0)) for i in range(4)]
    stem = nn.Conv2d(3, WIDTH, 3, 1, 1)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH * 8, 10)]
    return nn.Sequential(stem, nn.ReLU(), *stages, *head)


def images(count: int) -> Iterator[torch.Tensor]:
    for first in range(0, count, BATCH):
        random = torch.Generator().manual_seed(first)
        coarse = torch.randn(BATCH, 3, SIZE // 8, SIZE // 8, generator=random)
        yield nn.functional.interpolate(coarse, size=SIZE, mode="bilinear")


def converted(scratch: Path, count: int) -> None:
    """Says what the conversion gave, and what it had on the disk at most."""
    with qtool.without_weights():
        model = network()
    out, most, over = scratch / "model.onnx", 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.2):
            held = 0
            for file in Path(f"{out}.blocks").rglob("*.safetensors"):
                with suppress(OSError):  # gone since
                    held += file.stat().st_size
            most = max(most, held)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        options = {"mode": "static", "accuracy": "balanced", "block": BLOCK}
        found = qtool.quantize_by_blocks(scratch, images(count), out, model=model, **options)
    finally:
        over.set()
        watching.join()
    print(f"{found}\ntensors on the disk: at most {most / 2**20:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--limit", type=int, default=0, help="of memory in MiB, by a control group")
    parser.add_argument("--inside", action="store_true", help="convert in this process")
    given = parser.parse_args()
    if given.inside:
        converted(given.scratch, given.images)
        return
    given.scratch.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    save_file(network().state_dict(), given.scratch / "model.safetensors")
    command = [sys.executable, *sys.argv, "--inside"]
    ran = measured(command, given.limit, given.scratch)
    print(f"{given.images} images: {ran}\n{ran.said}")


if __name__ == "__main__":
    main()
