"""The rows of a benchmark that measures many networks: a file of JSON for each, and the machine."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.fresh_process import run_fresh
from qtool.core.atomic import atomic_path
from qtool.evaluation.machine import this_machine

__all__ = ["Row", "add_row", "has_row", "label_of", "measured_on", "read"]
__all__ += ["rows_by_label", "rows_of", "write"]

Row = Mapping[str, Any]

WHERE = "import qtool, pathlib; print(pathlib.Path(qtool.__file__).parent)"


def write(folder: Path, row: Row) -> None:
    """FOLDER/NETWORK.json, in the place of what was there, with this machine and its versions."""
    with atomic_path(folder / f"{row['network']}.json") as temporary:
        text = json.dumps({**row, "machine": asdict(this_machine())}, indent=1)
        temporary.write_text(text, encoding="utf-8")


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def rows_of(folder: Path, names: Iterable[str]) -> list[Any]:
    """Those that are there, in the order of the names."""
    return [read(folder, n) for n in names if (folder / f"{n}.json").exists()]


def has_row(folder: Path, name: str) -> bool:
    """Whether a network is measured; one where measuring failed is not."""
    return any(row["outcome"] != "failed" for row in rows_of(folder, [name]))


def add_row(folder: Path, name: str, script: str, *words: str) -> None:
    """Write the row that a script prints in a process of its own, unless it is there."""
    if has_row(folder, name):
        return
    try:
        row = dict[str, Any](run_fresh(script, *words))
    except subprocess.CalledProcessError as error:
        print(f"{name}: no row, exit code {error.returncode}", flush=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, row)
    print(f"{name}: {row['outcome']} {row.get('error', '')}", flush=True)


def label_of(python: str) -> str:
    """The commit of the checkout that an interpreter imports qtool from."""

    def printed(*words: str) -> str:
        aside = tempfile.gettempdir()  # a folder without a qtool of its own
        done = subprocess.run(words, cwd=aside, check=True, text=True, capture_output=True)
        return done.stdout.strip()

    return printed("git", "-C", printed(python, "-c", WHERE), "rev-parse", "--short=8", "HEAD")


def rows_by_label(folder: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """The rows in each folder of a label that has any."""
    labels = sorted(p.name for p in folder.iterdir() if p.is_dir())
    rows = {label: rows_of(folder / label, names) for label in labels}
    return {label: each for label, each in rows.items() if each}


def measured_on(rows: Sequence[Row]) -> str:
    """One line for every machine and set of versions that rows were made with."""
    lines = []
    for found in {str(r["machine"]): r["machine"] for r in rows}.values():
        versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items() if k != "qtool")
        features = ", ".join(found["features"]) or "no feature that matters to int8"
        lines.append(f"Measured on {found['cpu']} ({features}), {found['system']}; {versions}.")
    return "\n".join(dict.fromkeys(lines))
