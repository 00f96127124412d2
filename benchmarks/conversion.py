"""CPU seconds and memory of a conversion, compared with torch.onnx.export of the same network.

    python benchmarks/conversion.py FOLDER [--networks resnet20,minilm] [--samples 512] [--repeat 3]

Every figure is from its own process with one thread, the two sides in turn. It covers the call and
the modules that it imports; not the import of torch, qtool and onnxruntime, nor loading network and
data. qtool's sources are compiled beforehand. `reference`: torch.onnx.export(dynamo=True) of the
first calibration batch, written to a file. `qtool`: quantize with accuracy "fast" (other levels:
benchmarks/results) and export, with everything verified. Of several runs the median counts.
"""

from __future__ import annotations

import argparse
import compileall
import json
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from fresh_process import run_fresh

import qtool

SIDES = ("reference", "qtool")


def _reference(network: Any, file: Path) -> Callable[[], None]:
    import torch

    first = network.calibration[0]
    given = {"kwargs": first} if isinstance(first, dict) else {"args": (first,)}

    def run() -> None:
        written = torch.onnx.export(network.model, **given, dynamo=True, verbose=False)
        written.save(file)

    return run


def _qtool(network: Any, file: Path, samples: int, accuracy: str = "fast") -> Callable[[], None]:
    first = network.calibration[0]
    size = len(next(iter(first.values())) if isinstance(first, dict) else first)
    batches = list(islice(network.calibration, max(1, samples // size)))

    def run() -> None:
        given = {"dynamic": network.dynamic, "accuracy": accuracy}
        qtool.quantize(network.model, batches, **given).export(file)

    return run


def measured(side: str, folder: Path, name: str, samples: int) -> dict[str, float]:
    """In this process: CPU seconds of one side, and the most memory of the whole process in MB."""
    import onnxruntime  # noqa: F401  # not part of what is timed
    import realdata
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    network = realdata.load(folder, name)
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "model.onnx"
        run = _reference(network, file) if side == "reference" else _qtool(network, file, samples)
        start = time.process_time()
        run()
        seconds = time.process_time() - start
    return {"s": seconds, "MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _fresh(side: str, folder: Path, name: str, samples: int) -> dict[str, float]:
    words = ("--networks", name, "--side", side, "--samples", str(samples))
    return run_fresh(__file__, str(folder), *words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default="resnet20,resnet56,mobilenetv2_w05,densenet40,minilm")
    parser.add_argument("--samples", type=int, default=512, help="calibrated with")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        row = measured(options.side, options.folder, options.networks, options.samples)
        print(json.dumps(row))
        return
    compileall.compile_dir(Path(qtool.__file__).parent, quiet=1)
    print(f"{'network':>16}  {'reference s (MB)':>18}  {'qtool s (MB)':>18}  ratio")
    for name in options.networks.split(","):
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(options.repeat):
            for side in SIDES:
                found[side].append(_fresh(side, options.folder, name, options.samples))
        seconds = [statistics.median(r["s"] for r in found[side]) for side in SIDES]
        memory = [statistics.median(r["MB"] for r in found[side]) for side in SIDES]
        cells = [f"{s:.2f} ({m:.0f})" for s, m in zip(seconds, memory, strict=True)]
        ratio = seconds[1] / seconds[0]
        print(f"{name:>16}  {cells[0]:>18}  {cells[1]:>18}  {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    main()
