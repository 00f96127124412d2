"""CPU seconds of `--accuracy balanced` compared with `fast`.

    python benchmarks/levels.py FOLDER [--networks kws,resnet20] [--repeat 3]

Every figure is from its own process with one thread, levels in turn; of several runs the median
counts. Two figures per level:

- conversion: capture, calibration on all calibration data and the steps, with the modules that
  they import; without the import of torch, qtool and onnxruntime, export and verification.
- process: all that a user pays: imports, conversion, export and verification, without loading the
  network and its data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path

from fresh_process import run_fresh

LEVELS = ("fast", "balanced")
FIGURES = ("conversion", "process")


def measured(folder: Path, name: str, level: str) -> dict[str, float]:
    """Return the CPU seconds of this process."""
    import networks
    import onnxruntime  # noqa: F401  # not part of the conversion
    import torch

    import qtool

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    imported = time.process_time()
    network = networks.load(folder, name)
    start = time.process_time()
    captured = qtool.capture_model(network.model, network.calibration[0], network.dynamic)
    quantized = qtool.quantize(captured, network.calibration, accuracy=level)
    converted = time.process_time()
    with tempfile.TemporaryDirectory() as made:
        quantized.export(Path(made) / "model.onnx")
    process = time.process_time() - (start - imported)
    return {"conversion": converted - start, "process": process}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--networks", default="resnet20,resnet56,mobilenetv2_w05,densenet40,kws,minilm"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--level", choices=LEVELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.level:
        print(json.dumps(measured(options.folder, options.networks, options.level)))
        return
    print("| network | " + " | ".join(f"{f}: fast | balanced | times" for f in FIGURES) + " |")
    print("| --- |" + " --- |" * 6)
    for name in options.networks.split(","):
        rows: dict[str, list[dict[str, float]]] = {level: [] for level in LEVELS}
        for _ in range(options.repeat):
            for level in LEVELS:
                rows[level].append(
                    run_fresh(__file__, str(options.folder), "--networks", name, "--level", level)
                )
        cells = []
        for figure in FIGURES:
            fast, balanced = (statistics.median(r[figure] for r in rows[v]) for v in LEVELS)
            cells += [f"{fast:.1f}", f"{balanced:.1f}", f"{balanced / fast:.2f}"]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
