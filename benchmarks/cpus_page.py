"""The page of benchmarks/cpus.py: networks and processors, what differs and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rows import Row, measured_on
from qtool.backends.onnxruntime.emulation import CPUS

__all__ = ["cell", "page"]

HEAD = """# Networks on other processors

Int8 files of `{target}`, converted with default settings on one machine, run in ONNX Runtime on
processors that are emulated ([how](../../docs/targets.md#other-processors)), on {samples} samples
each. `python benchmarks/cpus.py -o FOLDER --page PAGE` writes this page.

- **identical**: all codes and all outputs are those of the machine that converted the file.
- **codes identical**: the outputs differ in the last bits of nodes in float behind the last codes.
- **kernels identical**: every integer kernel gives equal results for equal codes. Nodes in float
  differ in their last bits, and so do some codes that they are rounded to.
- ***n* of *m* kernels**: integer kernels that give other results for equal codes.

dB is the signal-to-noise ratio of the outputs there against those of the converting machine, and
the percentage the share of other predictions, where the first output is [samples, classes].
"""


def page(rows: Sequence[Row], cpus: Sequence[str]) -> str:
    """The whole page, of processors that any row has."""
    if not rows:
        return "Nothing is measured.\n"
    shown = [c for c in cpus if any(c in r["cpus"] for r in rows)]
    head = HEAD.format(target=rows[0]["target"], samples=rows[0]["samples"])
    parts = [head, measured_on(rows), _summary(rows, shown), _table(rows, shown)]
    first = [f"- {line}" for r in rows for line in _firsts(r, shown)]
    if first:
        parts.append("## Where it differs first\n\n" + "\n".join(first))
    return "\n\n".join(p.strip() for p in parts if p) + "\n"


def cell(found: Mapping[str, Any] | None) -> str:
    """What one network gives on one processor."""
    if found is None:
        return ""
    if "error" in found:
        return "not run"
    changed = found["changed_share"]
    off = f", {_decibels(found)} dB" if found["outputs_identical"] != found["outputs"] else ""
    off += f", {100 * changed:.1f} %" if off and changed is not None else ""
    if found["wrong_kernels"]:
        return f"**{len(found['wrong_kernels'])} of {found['kernels']} kernels**{off}"
    if found["codes_identical"] != found["codes"]:
        return f"kernels identical{off}"
    return f"codes identical{off}" if off else "identical"


def _decibels(found: Mapping[str, Any]) -> str:
    value = found["sqnr_db"]
    return "-inf" if value is None else f"{value:.1f}"


def _summary(rows: Sequence[Row], cpus: Sequence[str]) -> str:
    """One line for each processor."""
    lines = []
    for cpu in cpus:
        found = [r["cpus"][cpu] for r in rows if cpu in r["cpus"] and "error" not in r["cpus"][cpu]]
        kernels = sum(f["kernels"] for f in found)
        wrong = sum(len(f["wrong_kernels"]) for f in found)
        codes = sum(f["codes"] for f in found)
        lines.append(
            f"- **{cpu}** ({CPUS[cpu].description}): {len(found)} networks, {codes:,} codes; "
            f"{wrong} of {kernels} integer kernels give other results."
        )
    return "\n".join(lines)


def _table(rows: Sequence[Row], cpus: Sequence[str]) -> str:
    lines = [f"| network | integer MACs | float nodes | {' | '.join(cpus)} |"]
    lines.append("|---|---:|---|" + "---|" * len(cpus))
    for row in rows:
        if "refused" in row:
            lines.append(f"| {row['network']} | | refused: {row['refused']} |" + " |" * len(cpus))
            continue
        cells = " | ".join(cell(row["cpus"].get(cpu)) for cpu in cpus)
        floats = ", ".join(row["float"])
        lines.append(f"| {row['network']} | {100 * row['integer']:.1f} % | {floats} | {cells} |")
    return "\n".join(lines)


def _firsts(row: Row, cpus: Sequence[str]) -> list[str]:
    """Sentences on the first difference of a network, and on runs that failed."""
    said = []
    for cpu in cpus:
        found = row["cpus"].get(cpu, {})
        if "error" in found:
            said.append(f"{row['network']}, {cpu}: {found['error']}")
        elif first := found.get("first"):
            where = ", ".join(first["float_nodes"][:2])
            why = f", in float: {where}" if where else ""
            said.append(f"{row['network']}, {cpu}: {first['node']} ({first['op']}){why}")
    return said
