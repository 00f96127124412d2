"""Conversion of networks that qtool was not tuned for: failures, coverage and SQNR.

    python benchmarks/unseen -o FOLDER [--only fpn,bert] [--seconds S] [--page PAGE]

Needs torchvision, timm and transformers beside qtool (without them the rows that need them say so):

    pip install --no-deps torchvision timm && pip install pillow transformers

Each network runs in a process of its own and leaves FOLDER/NETWORK.json; what is there already is
kept and not repeated (delete it to measure again). `--only` also takes the name of a group, or
`failed` for all that are not converted, which are measured again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[2]))  # benchmarks/rows.py, run as a script

from measure import measure
from network import torchvision
from networks import NETWORKS
from page import page

from benchmarks.rows import read, rows_of, write

GROUPS = {network.group for network in NETWORKS.values()}
LIMIT = 900  # seconds for one network


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each latency measurement")
    parser.add_argument("--page", type=Path, help="the page to write of all that is there")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    _libraries()
    for name, again in _chosen(options.only, options.output).items():
        if again or not (options.output / f"{name}.json").exists():
            _start(name, options.output, options.seconds)
        print(_line(read(options.output, name)), flush=True)
    if options.page:
        options.page.write_text(page(rows_of(options.output, NETWORKS)), encoding="utf-8")


def _chosen(only: str, folder: Path) -> dict[str, bool]:
    """The networks that are named, and whether each is measured again if it has a row."""
    found: dict[str, bool] = {}
    for word in only.split(",") if only not in GROUPS else [only]:
        if word == "failed":
            rows = rows_of(folder, NETWORKS)
            found |= {r["network"]: True for r in rows if r["outcome"] != "ok"}
            continue
        names = [n for n, network in NETWORKS.items() if word in (n, network.group)]
        if not names:
            raise SystemExit(f"no network or group is called '{word}'")
        found |= {n: found.get(n, False) for n in names}
    return found


def _start(name: str, folder: Path, seconds: float) -> None:
    """One network in a process of its own; however that ends, there is a file."""
    process = multiprocessing.get_context("fork").Process(target=_one, args=(name, folder, seconds))
    process.start()
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        process.join()
        error = f"not done after {LIMIT} s"
    else:
        error = f"the process ended with {process.exitcode}" if process.exitcode else ""
    if error:
        _write(folder, name, {"outcome": "traceback", "error": error})


def _one(name: str, folder: Path, seconds: float) -> None:
    try:
        found = asdict(measure(NETWORKS[name], seconds))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is this network's row
        traceback.print_exc()
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        found = {"outcome": "traceback", "error": text}
    _write(folder, name, found)


def _libraries() -> None:
    """Imported once, for all the processes that are forked from this one."""
    for load in (
        torchvision,
        partial(import_module, "timm"),
        partial(import_module, "transformers"),
    ):
        with suppress(ImportError):
            load()


def _write(folder: Path, name: str, found: dict) -> None:
    write(folder, {"network": name, "group": NETWORKS[name].group, **found})


def _line(row: dict) -> str:
    name = row["network"].ljust(32)
    if row["outcome"] != "ok":
        return f"{name} {row['outcome']}: {row['error']}"
    sqnr = ", ".join("-" if db is None else f"{db:.1f}" for db in row["sqnr"][:6])
    low = ", ".join("-" if db is None else f"{db:.1f}" for db in (row["bf16"] or [])[:6])
    return (
        f"{name} ok {100 * row['share']:6.2f} % ({100 * row['weighted_share']:.2f} %), float "
        f"{row['in_float'] or 'none'}, {row['identical']}/{row['elements']} equal, {sqnr} dB "
        f"(bf16 {low}), other sizes {row['other']}, {row['seconds']:.0f} s, "
        f"{row['ratio'] or 0:.2f}x"
    )


if __name__ == "__main__":
    main()
