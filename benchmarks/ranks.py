"""Speed-up of calibration in several processes, and equality of the bytes.

    python benchmarks/ranks.py FOLDER [--networks resnet50] [--ranks 1,2] [--repeat 4]

Every process has one torch thread and takes every n-th batch. Seconds of wall time, from the moment
when all have captured the model until the first has the calibration of all; in each round every
number of processes runs once, and is compared with the first of that round. Where others use the
machine, too, look at the CPU seconds of the busiest process instead: what wall time would be with a
core for each, and no waiting. `--convert` lets all convert together, too, and compares the bytes of
the model; its seconds are on a separate line.
FOLDER holds the real networks (networks.py); resnet50 has random weights, and 8 batches of
images of 224 unless `--repeat` says more; minilm is calibrated on all sentences with `--whole`.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import networks
import torch
from calibration import load
from torch import distributed as dist

import qtool
from qtool.distributed import DataShard
from qtool.planning.targets import DEFAULT

KINDS = ("wall", "CPU", "with conversion wall", "CPU")


def work(
    pipe: Any, port: int, rank: int, size: int, name: str, options: argparse.Namespace
) -> None:
    """One rank: captures, waits for the others, calibrates, converts; sends wall and CPU seconds of
    both, and digests."""
    torch.set_num_threads(1)
    model, batches, dynamic = load(options.folder, name, options.images)
    if options.whole:
        batches = list(networks.load(options.folder, name).data)
    batches = list(batches) * options.repeat
    captured = qtool.capture_model(model, batches[0], dynamic)
    captured.for_target(DEFAULT)
    given = {"observer": options.observer, "accuracy": options.accuracy}
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    dist.barrier()
    share = DataShard(batches, rank, size)
    begin = _clocks()
    found = qtool.calibrate(captured, share, **given)
    seconds, digests = _since(begin), [_digest(found.to_bytes())]
    if options.convert:
        dist.barrier()
        begin = _clocks()
        made = qtool.quantize(captured, share, **given)
        seconds += _since(begin)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "int8.onnx"
            if not rank:
                made.export(file)
                digests.append(_digest(file.read_bytes()))
    dist.destroy_process_group()
    pipe.send((seconds, digests))


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(begin: tuple[float, float]) -> list[float]:
    """Seconds of wall time and of this process."""
    return [now - then for now, then in zip(_clocks(), begin, strict=True)]


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def measure(size: int, name: str, options: argparse.Namespace) -> tuple[list[float], list[str]]:
    """Seconds of rank 0 and CPU seconds of the busiest, to calibrate, and to calibrate and convert;
    and the digests of calibration and model."""
    context = multiprocessing.get_context("spawn")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        given = (theirs, store.port, rank, size, name, options)
        context.Process(target=work, args=given, daemon=True).start()
        theirs.close()
        pipes.append(ours)
    found = [pipe.recv() for pipe in pipes]
    if len({digests[0] for _, digests in found}) > 1:
        raise SystemExit(f"{name}: the ranks do not have the same calibration")
    first, digests = found[0]
    busiest = [max(seconds[k] for seconds, _ in found) for k in range(len(first))]
    return [busiest[k] if k % 2 else first[k] for k in range(len(first))], digests


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default="resnet50,minilm")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=1, help="how often the data is gone through")
    parser.add_argument("--observer", default="percentile")
    parser.add_argument("--accuracy", default="fast")
    parser.add_argument("--whole", action="store_true", help="calibrate on the evaluation data")
    parser.add_argument("--convert", action="store_true")
    options = parser.parse_args()
    sizes = [int(n) for n in options.ranks.split(",")]
    for name in options.networks.split(","):
        if name == "minilm":
            networks.let_torchvision_import()
        seconds: dict[int, list[list[float]]] = {n: [] for n in sizes}
        bytes_of: dict[int, list[str]] = {}
        for _ in range(options.rounds):
            for n in sizes:
                spent, bytes_of[n] = measure(n, name, options)
                seconds[n].append(spent)
        for n in sizes:
            told = [
                f"{kind} {median(s[k] for s in seconds[n]):.2f} s, "
                + _times(seconds, sizes[0], n, k)
                for k, kind in enumerate(KINDS[: len(seconds[n][0])])
            ]
            same = "same bytes" if bytes_of[n] == bytes_of[sizes[0]] else f"OTHER {bytes_of[n]}"
            print(f"{name:12} {n} processes: {'; '.join(told)}; {same}", flush=True)


def _times(seconds: dict[int, list[list[float]]], one: int, other: int, kind: int) -> str:
    pairs = zip(seconds[one], seconds[other], strict=True)
    ratios = [a[kind] / b[kind] for a, b in pairs]
    return f"{median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    sys.exit(main())
