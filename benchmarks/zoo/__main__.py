"""Conversion of known networks with default settings: coverage, SQNR and speed.

    python benchmarks/zoo -o FOLDER [--only resnet18,bert] [--seconds S] [--page PAGE]

Needs torchvision and transformers beside qtool. A torchvision for exactly this torch is not needed:

    pip install --no-deps torchvision && pip install pillow transformers

Each network runs in a process of its own and leaves FOLDER/NETWORK.json; what is there already is
kept and not repeated (delete it to measure again). A network that fails leaves its error there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # benchmarks/rows.py, run as a script

from networks import NETWORKS
from page import page

from benchmarks.rows import read, rows_of, write

LIMIT = 3600  # seconds for one network


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--seconds", type=float, default=4.0, help="of each latency measurement")
    parser.add_argument("--page", type=Path, help="the page to write of all that is there")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the name, in a process of its own
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.one:
        _one(options.one, options.output, options.seconds)
        return
    for name in options.only.split(","):
        if not (options.output / f"{name}.json").exists():
            _start(name, options.output, options.seconds)
        print(_line(read(options.output, name)), flush=True)
    if options.page:
        options.page.write_text(page(rows_of(options.output, NETWORKS)), encoding="utf-8")


def _start(name: str, folder: Path, seconds: float) -> None:
    """One network in a fresh process; however that ends, there is a file."""
    command = [sys.executable, str(Path(__file__).parent), "-o", str(folder)]
    command += ["--one", name, "--seconds", str(seconds)]
    try:
        code = subprocess.run(command, timeout=LIMIT, check=False).returncode
        error = f"the process ended with {code}" if code else ""
    except subprocess.TimeoutExpired:
        error = f"not done after {LIMIT} s"
    if error:
        _write(folder, name, {"error": error})


def _one(name: str, folder: Path, seconds: float) -> None:
    try:
        from measure import measure

        found = asdict(measure(name, NETWORKS[name], seconds))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is this network's row
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}"}
    _write(folder, name, found)


def _write(folder: Path, name: str, found: dict) -> None:
    network = NETWORKS[name]
    row = {"network": name, "group": network.group, "family": network.family, **found}
    write(folder, row)


def _line(row: dict) -> str:
    name = row["network"].ljust(28)
    if "error" in row:
        return f"{name} failed: {' '.join(row['error'].split())}"
    return (
        f"{name} {100 * row['share']:6.2f} % of MACs, {100 * row['weighted_share']:6.2f} % of "
        f"layers', float {row['float_kernels'] or 'none'}, {row['sqnr_db']:5.1f} dB, "
        f"{row['identical']}/{row['elements']} equal, {row['convert']:.0f}+{row['export']:.0f} s, "
        f"{row['mebibytes']:.0f} MiB, {row['ratio']:.2f}x"
    )


if __name__ == "__main__":
    main()
