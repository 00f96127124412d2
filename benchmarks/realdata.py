"""Accuracy, error, integer share and speed of real networks: the table of the README.

    python benchmarks/realdata.py FOLDER [--networks kws] [--accuracy fast] [--mode dynamic]
                                  [--target TARGET]
                                  [--without-data]

Each network is calibrated and converted with default settings, then run in ONNX Runtime on the
evaluation data beside its float model. Latency: one thread, interleaved runs in this process,
median of paired ratios.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import networks
import torch

import qtool
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.latency.interleaved_timing import time_files
from qtool.evaluation.model_inputs import resized
from qtool.evaluation.user_metrics import FileFunction
from qtool.frontends.captured_model import DEFAULT_OBSERVER
from qtool.planning import targets

COLUMNS = (
    "network",
    "float",
    "int8",
    "drop",
    "agree",
    "SQNR dB",
    "integer MACs",
    "float ops",
    "b1",
    "b32",
    "calibrate+convert s",
    "export+verify s",
    "MiB",
)


def measure(
    network: networks.Network,
    folder: Path,
    options: argparse.Namespace,
) -> dict:
    file, plain = folder / "int8.onnx", folder / "float.onnx"
    start = time.perf_counter()
    captured = qtool.capture_model(network.model, network.calibration[0], network.dynamic)
    quantized = qtool.quantize(
        captured,
        None if options.without_data else network.calibration,
        observer=options.observer,
        mode=options.mode,
        accuracy=options.accuracy,
        target=options.target,
    )
    converted = time.perf_counter()
    result = quantized.export(file)
    exported = time.perf_counter()
    captured.export_float(plain)
    found = qtool.evaluate(file, captured, network.data, network.labels, seconds=0.1)
    arrays = Feeder(plain).arrays(network.timed, 0)
    ratio = {}
    for n in (1, 32):
        inputs = resized([plain], arrays, n)
        timing = time_files([plain, file], inputs, seconds=options.seconds)
        ratio[n] = timing.ratios[1].median
    if network.metric is None:
        before, after = (100 * (side.accuracy or 0) for side in (found.float_, found.int8))
    else:
        before, after = (network.metric(FileFunction(f)) for f in (plain, file))
    return {
        "network": network.name,
        "float": before,
        "int8": after,
        "drop": before - after,
        "agree": 100 * found.agreement if found.agreement is not None else float("nan"),
        "SQNR dB": found.sqnr_db,
        "integer MACs": 100 * result.coverage.share,
        "float ops": len(result.coverage.float_rows),
        "b1": ratio[1],
        "b32": ratio[32],
        "calibrate+convert s": converted - start,
        "export+verify s": exported - converted,
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "parity": str(result.parity),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default=",".join(networks.NETWORKS))
    parser.add_argument("--observer", default=DEFAULT_OBSERVER)
    parser.add_argument("--mode", default="static")
    parser.add_argument("--accuracy", default="balanced")
    parser.add_argument("--target", default=targets.DEFAULT)
    parser.add_argument("--without-data", action="store_true", help="inputs are distilled")
    parser.add_argument("--seconds", type=float, default=4.0, help="per latency measurement")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(2)
    rows = []
    print("  ".join(c.rjust(max(8, len(c))) for c in COLUMNS))
    for name in options.networks.split(","):
        with tempfile.TemporaryDirectory() as folder:
            network = networks.load(options.folder, name)
            row = measure(network, Path(folder), options)
        rows.append(row)
        cells = [row[c] if isinstance(row[c], str) else f"{row[c]:.2f}" for c in COLUMNS]
        print(
            "  ".join(c.rjust(max(8, len(h))) for c, h in zip(cells, COLUMNS, strict=True)),
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
