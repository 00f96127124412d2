"""The page of the trained networks out of packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.packages.networks import NETWORKS
from benchmarks.rows import Row, measured_on

__all__ = ["page"]

HEAD = """# Trained networks out of public packages

`python benchmarks/packaged.py FOLDER --packages PACKAGES --page THIS` makes this page; its `--help`
says what is needed. Each network is a file of a package as it is (CREPE and the voice encoder are
torch modules), converted by the plain command, `qtool quantize FILE --data SAMPLES -o OUT`; where
that is refused, by the command with the option that the refusal names, which is in the column
*remedy*. All is measured on 128 new samples (48 of long sounds and recordings), one by one, with
plain ONNX Runtime and numpy.

- **dB**: SQNR of the worst output: median of the samples, and pooled.
- **task**: the metric of the float file, then of qtool's, and of onnxruntime.quantization's static
  (QDQ, a scale per channel) and dynamic files, from the same calibration samples. Where the right
  answers are not known the metric is the agreement with the float file, which has 1.
- **agreement**: of qtool's decisions with those of the float file.
- **speed**: times as fast as the float file, batch 1, one thread, paired runs in turns by thread
  CPU time.
- **size**: of the file, as a share of the float file.
- **seconds**: CPU seconds of the command. **GiB**: its peak memory.
- **sizes**: of the sizes of dynamic dimensions that the float file takes (others than the
  samples'), those that qtool's file takes, with the same shapes and at most 10 dB less (than 30
  dB, where a sample has more); "said" where the command said what it fixed.
- **internal**: kinds of messages in what the command printed that are no user's: tracebacks,
  warnings of libraries, Python values, operators of torch, names of exceptions."""
COLUMNS = (
    *("network", "samples", "remedy", "dB", "task", "agreement", "speed", "size"),
    *("seconds", "GiB", "sizes", "internal"),
)
FILES = ("qtool", "static", "dynamic")


def page(measured: Mapping[str, Sequence[Row]]) -> str:
    """The whole page, of the rows of each version."""
    parts = [HEAD, _packages()]
    for label, rows in measured.items():
        parts += [f"## {label}", measured_on(rows), _summary(rows), _table(rows), _others(rows)]
    return "\n\n".join(p for p in parts if p) + "\n"


def _lines(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _packages() -> str:
    head = ("network", "kind", "package", "file", "task metric")
    rows = [(n.name, n.kind, n.package, Path(n.file).name, n.task.words) for n in NETWORKS.values()]
    return _lines([head, *rows])


def _good(rows: Sequence[Row]) -> list[Row]:
    return [r for r in rows if r["outcome"] == "ok"]


def _summary(rows: Sequence[Row]) -> str:
    """Of each number of samples."""
    counts = sorted({r["samples"] for r in rows})
    lines = [["samples", *(str(c) for c in counts)]]
    per = [[r for r in rows if r["samples"] == c] for c in counts]
    lines.append(["networks", *(str(len(r)) for r in per)])
    lines.append(["converted", *(str(len(_good(r))) for r in per)])
    remedies = [sum(bool(x["remedies"]) for x in _good(r)) for r in per]
    lines.append(["of these with an option that a refusal named", *(str(n) for n in remedies)])
    lines.append(
        ["internal messages", *(str(sum(bool(x.get("internal")) for x in r)) for r in per)]
    )
    lines.append(["sizes of the float file that are taken", *(_taken(r) for r in per)])
    silent = [sum(_silent(x) for x in _good(r)) for r in per]
    lines.append(["networks with sizes that are not taken, and nothing said", *map(str, silent)])
    better = [_worse(r, "static") for r in per], [_worse(r, "dynamic") for r in per]
    for name, cells in zip(("static", "dynamic"), better, strict=True):
        lines.append([f"task metric above, as good as, below that of {name}", *cells])
    return _lines(lines)


def _taken(rows: Sequence[Row]) -> str:
    states = [s for r in _good(rows) for s in r.get("sizes", {}).values()]
    return f"{states.count('ok')} of {len(states)}"


def _is_said(row: Row) -> bool:
    words = ("is fixed to", "takes only", "is correct only")
    return any(w in row["stderr"] + row["printed"] for w in words)


def _silent(row: Row) -> bool:
    return any(s != "ok" for s in row.get("sizes", {}).values()) and not _is_said(row)


def _sizes(row: Row) -> str:
    states = list(row.get("sizes", {}).values())
    if not states:
        return ""
    said = ", said" if states.count("ok") < len(states) and _is_said(row) else ""
    return f"{states.count('ok')} of {len(states)}{said}"


def _worse(rows: Sequence[Row], peer: str) -> str:
    """By more than 0.005; a peer's file that is not there or does not run is below."""
    signs = []
    for row in _good(rows):
        ours, other = row["files"]["qtool"].get("after", 0), row["files"][peer].get("after", -1)
        signs.append((ours > other + 0.005) - (ours < other - 0.005))
    return ", ".join(str(signs.count(s)) for s in (1, 0, -1))


def _table(rows: Sequence[Row]) -> str:
    return _lines([COLUMNS, *(_cells(r) for r in _good(rows))])


def _cells(row: Row) -> tuple[str, ...]:
    files = row["files"]
    figures = files["qtool"]
    outputs = figures.get("outputs", {}).values()
    worst = min(outputs, key=lambda o: o["pooled_db"], default=None)
    task = [f"{row['before']:.3f}", *(_after(files[f]) for f in FILES)]
    return (
        row["name"],
        str(row["samples"]),
        " ".join(f"`{r}`" for r in row["remedies"]),
        f"{worst['median_db']:.1f}, {worst['pooled_db']:.1f}" if worst else "",
        " -> ".join([task[0], " / ".join(task[1:])]),
        f"{figures['agreement']:.3f}" if "agreement" in figures else "",
        " / ".join(_speed(files[f]) for f in FILES),
        " / ".join(_share(row, files[f]) for f in FILES),
        f"{row['cpu_seconds']:.0f}",
        f"{row['peak_gib']:.1f}",
        _sizes(row),
        ", ".join(row["internal"]),
    )


def _after(figures: Mapping[str, Any]) -> str:
    return f"{figures['after']:.3f}" if "after" in figures else "none"


def _speed(figures: Mapping[str, Any]) -> str:
    return f"{figures['speed']['ratio']:.2f}" if "speed" in figures else "-"


def _share(row: Row, figures: Mapping[str, Any]) -> str:
    return f"{figures['bytes'] / row['float_bytes']:.2f}" if "bytes" in figures else "-"


def _others(rows: Sequence[Row]) -> str:
    """Refusals, sizes that are not taken, files of the peer that are not there."""
    lines = []
    for row in rows:
        name = row["network"]
        if row["outcome"] == "refused":
            lines.append(f"- {name}: refused: {row['refusals'][-1]}")
        elif row["outcome"] == "failed":
            lines.append(f"- {name}: not measured: {row['error']}")
        wrong = {k: v for k, v in row.get("sizes", {}).items() if v != "ok"}
        lines += [f"- {name}: at {k}: {v}" for k, v in wrong.items()]
    errors = {}
    for row in rows:
        for peer in FILES[1:]:
            if text := row.get("files", {}).get(peer, {}).get("error"):
                errors.setdefault((row["name"], peer), text)
    lines += [
        f"- {name}, {peer}, makes no file that runs: {t}" for (name, peer), t in errors.items()
    ]
    return "\n".join(line.replace("|", "\\|") for line in lines)
