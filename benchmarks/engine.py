"""Exactness, speed and memory of the integer engine on real networks.

    python benchmarks/engine.py FOLDER [--networks resnet20,kws] [--images 1000]

Speed: a batch of 32, one thread, interleaved with torch's own float forward of the user's network;
the ratio is the median of paired ratios (engine / torch float, lower is better). Memory: peak of a
process that runs the one, over that of a process that runs the other, each less the memory that
was in use before the run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import networks
import torch

import qtool
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.evaluation.feeder import Feeder


def forward(network: networks.Network):  # the float network on the tensors of a batch, in order
    if isinstance(network.calibration[0], dict):
        names = list(network.calibration[0])
        return lambda *x: network.model(**dict(zip(names, x, strict=True)))
    return network.model


def tensors(item) -> list[torch.Tensor]:
    return list(item.values()) if isinstance(item, dict) else [item]


def speed(program, model, x: list[torch.Tensor], rounds: int = 30) -> tuple[float, float, float]:
    """Milliseconds of torch float and of the engine, and the median paired ratio."""
    rows = []
    with torch.inference_mode():
        for i in range(rounds + 3):
            a = time.perf_counter()
            model(*x)
            b = time.perf_counter()
            program(*x)
            c = time.perf_counter()
            if i >= 3:
                rows.append((b - a, c - b))
    fast, slow = (1000 * statistics.median(r[k] for r in rows) for k in (0, 1))
    return fast, slow, statistics.median(r[1] / r[0] for r in rows)


def peak(folder: Path, name: str, file: Path, what: str) -> float:
    """MiB that one forward adds to the peak memory of a fresh process."""
    command = [sys.executable, __file__, str(folder), "--networks", name, "--peak", what, str(file)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak_here(folder: Path, name: str, what: str, file: Path) -> float:
    torch.set_num_threads(1)
    network = networks.load(folder, name)
    x = tensors(network.calibration[0])
    run = lower(file) if what == "engine" else forward(network)
    with torch.inference_mode():
        run(*(t[:1] for t in x))  # what is allocated once: plans of kernels, caches
        Path("/proc/self/clear_refs").write_text("5")  # the peak counter starts again (Linux)
        before = _memory("VmRSS")
        run(*x)
    return (_memory("VmHWM") - before) / 1024


def _memory(key: str) -> int:
    """KiB, from the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def first_samples(batches, count: int):  # whole batches but for the last
    for arrays in batches:
        yield [a[:count] for a in arrays]
        count -= len(arrays[0])
        if count <= 0:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default=",".join(networks.NETWORKS))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--peak", nargs=2, metavar=("WHAT", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        what, file = options.peak
        print(peak_here(options.folder, options.networks, what, Path(file)))
        return
    print("network          identical outputs   float ms  engine ms  ratio  float MiB  engine MiB")
    for name in options.networks.split(","):
        network = networks.load(options.folder, name)
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "int8.onnx"
            torch.set_num_threads(2)
            captured = qtool.capture_model(network.model, network.calibration[0], network.dynamic)
            qtool.quantize(captured, network.calibration).export(file)
            torch.set_num_threads(1)
            feeder = Feeder(file)
            batches = (feeder.arrays(item, i) for i, item in enumerate(network.data))
            found = compare_codes(file, first_samples(batches, options.images))
            fast, slow, ratio = speed(
                lower(file), forward(network), tensors(network.calibration[0])
            )
            mib = [peak(options.folder, name, file, what) for what in ("float", "engine")]
        same = f"{found.identical} of {found.elements}"
        line = f"{name:16s} {same:>18s} {fast:10.2f} {slow:10.2f} {ratio:6.2f}"
        line += f" {mib[0]:10.1f} {mib[1]:11.1f}"
        line += f"  first difference: {found.first}" if found.first else ""
        print(line, flush=True)


if __name__ == "__main__":
    main()
