"""The rows of a benchmark that measures many networks: a file of JSON for each, and the machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qtool.core.atomic import atomic_path
from qtool.evaluation.machine import this_machine

__all__ = ["Row", "measured_on", "read", "rows_of", "write"]

Row = Mapping[str, Any]


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


def measured_on(rows: Sequence[Row]) -> str:
    """One line for every machine and set of versions that rows were made with."""
    lines = []
    for found in {str(r["machine"]): r["machine"] for r in rows}.values():
        versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items() if k != "qtool")
        features = ", ".join(found["features"]) or "no feature that matters to int8"
        lines.append(f"Measured on {found['cpu']} ({features}), {found['system']}; {versions}.")
    return "\n".join(dict.fromkeys(lines))
