"""Int8 files on other processors, emulated, compared with this machine.

    python benchmarks/cpus.py -o FOLDER [--only digits,kws] [--cpus haswell,wasm] [--samples 64]
                              [--target NAME] [--trained FOLDER] [--page PAGE]

Each network is converted with default settings, and its file run in ONNX Runtime on emulated
processors (`qtool emulators`). FOLDER/TARGET keeps files and results: what is measured of a network
and a processor is not repeated (delete NETWORK.json to measure it again). --trained names the
folder of trained networks, see networks.py; the random ones need torchvision and transformers:

    pip install --no-deps torchvision && pip install transformers
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/rows.py, run as a script

from cpus_networks import NETWORKS, Case
from cpus_page import page

import qtool
from benchmarks.rows import read, rows_of, write
from qtool.backends.onnxruntime.emulation import CPUS, parse_cpus
from qtool.planning.targets import DEFAULT

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--cpus", default="all")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--target", default=DEFAULT)
    parser.add_argument("--trained", type=Path, help="the folder of trained networks")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds a processor")
    parser.add_argument("--page", type=Path, help="the page to write of all that is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cpus = [cpu.name for cpu in parse_cpus(options.cpus)]
    folder = options.output / options.target
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.only.split(","):
        if name not in NETWORKS:
            raise SystemExit(f"no network is called '{name}'; there are {', '.join(NETWORKS)}")
        _measure(name, cpus, folder, options)
    if options.page:
        options.page.write_text(page(rows_of(folder, NETWORKS), list(CPUS)), encoding="utf-8")


def _measure(name: str, cpus: list[str], folder: Path, options: argparse.Namespace) -> None:
    """All that is not there yet of one network; what is found is written at once."""
    row = _begun(name, folder, options)
    missing = [cpu for cpu in cpus if cpu not in row["cpus"]]
    if not missing:
        print(f"{name}: all is there", flush=True)
        return
    case = NETWORKS[name].make(options.samples, options.trained)
    file = folder / f"{name}.onnx"
    if not file.exists():
        row |= _converted(case, file, options.target)
        write(folder, row)
    if "refused" in row:
        print(f"{name}: {row['refused']}", flush=True)
        return
    for cpu in missing:
        row["cpus"][cpu] = _run(file, cpu, case, options)
        write(folder, row)
        print(f"{name} {cpu}: {_line(row['cpus'][cpu])}", flush=True)


def _begun(name: str, folder: Path, options: argparse.Namespace) -> Row:
    fresh = {
        "network": name,
        "group": NETWORKS[name].group,
        "target": options.target,
        "samples": options.samples,
        "cpus": {},
    }
    if not (folder / f"{name}.json").exists():
        return fresh
    row: Row = read(folder, name)
    if row["samples"] != options.samples:
        raise SystemExit(
            f"{folder / name}.json has {row['samples']} samples; delete it, or name another folder"
        )
    return row


def _converted(case: Case, file: Path, target: str) -> Row:
    """The file, and what its conversion says of it."""
    start = time.perf_counter()
    try:
        captured = qtool.capture_model(case.model, case.calibration[0], case.dynamic)
        result = qtool.quantize(captured, case.calibration, target=target).export(file)
    except qtool.QtoolError as error:
        return {"refused": str(error)}
    found = {"seconds": time.perf_counter() - start, "integer": result.coverage.share}
    floats = sorted({row.op for row in result.coverage.float_rows})
    return {**found, "float": floats, "sqnr_db": min(result.fidelity.worst, 999.0)}


def _run(file: Path, cpu: str, case: Case, options: argparse.Namespace) -> Mapping[str, Any]:
    start = time.perf_counter()
    try:
        found = qtool.verify_on(
            file, cpu, case.data, samples=options.samples, timeout=options.timeout
        )
    except qtool.QtoolError as error:
        return {"error": str(error)}
    return {**found.to_json()["results"][0], "seconds": time.perf_counter() - start}


def _line(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return str(found["error"])
    codes = f"{found['codes_identical']} of {found['codes']} codes"
    wrong = f"{len(found['wrong_kernels'])} of {found['kernels']} kernels differ"
    return f"{codes}, {wrong}, {found['seconds']:.0f} s"


if __name__ == "__main__":
    main()
