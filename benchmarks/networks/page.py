"""The page of a set of networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rows import Row, measured_on

__all__ = ["page"]

HEAD = """# Networks and tools: {kind}

`python -m benchmarks.networks {kind} -o OUT --page THIS` makes this page; its `--help` says what is
needed. Commit {label}. qtool is the plain command, `qtool quantize MODEL --data SAMPLES -o OUT`,
with the options that its name says, and with the option that a refusal names, which is in the
column *remedy*. *static* and *dynamic* are onnxruntime.quantization (QDQ, a scale per channel of
the weights), *percentile* the same with its percentile calibration. All tools have the same
calibration samples. All files are measured on the same new samples, one by one, with plain ONNX
Runtime or LiteRT and numpy. With random weights, accuracy only compares tools.

- **dB**: SQNR of the worst output: median of the samples, and pooled.
- **task**: the metric of the float file, then of the file, with the standard error of the drop
  where it is a mean over samples. Where the right answers are not known it is the agreement with
  the float file, which has 1.
- **agreement**: of decisions with those of the float file.
- **speed**: times as fast as the float file, and the 95 % interval of that median; one thread, all
  files in turns, by thread CPU time. Of .tflite files against the float .tflite that qtool writes.
- **size**: of the file, as a share of the float file.
- **integer**: share of multiply-accumulates in integer kernels, counted from a profile of the
  runtime.
- **seconds**, **GiB**: CPU seconds and peak memory of the process, imports included. qtool verifies
  its file in them.
- **sizes**: of the sizes of dynamic dimensions that the float file takes (others than the
  samples'), those that the file takes, with the same shapes and at most 10 dB less (than 30 dB,
  where a sample has more); "said" where the command said what it fixed.
- **internal**: kinds of messages of qtool that are no user's: tracebacks, warnings of libraries,
  Python values, operators of torch, names of exceptions."""
COLUMNS = ("network", "samples", "tool", "remedy", "dB", "task", "agreement")
REST = ("size", "integer", "seconds", "GiB", "sizes", "internal")
SAME = 0.005
"""Difference of task metrics that is none."""


def page(kind: str, label: str, rows: Sequence[Row]) -> str:
    """The whole page, of the rows of one version."""
    parts = [HEAD.format(kind=kind, label=label), measured_on(rows), _summary(rows), _sources(rows)]
    for group in dict.fromkeys(r["group"] for r in rows):
        parts += [f"## {group}", _table([r for r in rows if r["group"] == group])]
    return "\n\n".join(p for p in [*parts, _others(rows)] if p) + "\n"


def _lines(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sources(rows: Sequence[Row]) -> str:
    head = ("network", "from", "task metric")
    cells = {(r["name"], r["source"], r["task"]): None for r in rows if r.get("task")}
    return _lines([head, *cells]) if cells else ""


def _tools(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(t for r in rows for t in r.get("tools", {})))


def _of(rows: Sequence[Row], tool: str) -> list[Mapping[str, Any]]:
    """The figures of a tool's files that run."""
    each = [r["tools"][tool] for r in rows if tool in r.get("tools", {})]
    return [f for f in each if "error" not in f]


def _summary(rows: Sequence[Row]) -> str:
    """One line per tool."""
    tools = _tools(rows)
    head = ["tool", "networks", "files that run", "with a remedy", "faster than float"]
    head += ["sizes that are taken", "sizes not taken, nothing said", "internal messages"]
    head += [f"task above, as good, below {t}" for t in tools[1:]]
    lines = [head]
    for tool in tools:
        figures = _of(rows, tool)
        asked = [r["tools"][tool] for r in rows if tool in r.get("tools", {})]
        counts = [len(asked), len(figures), sum(bool(f.get("remedies")) for f in figures)]
        counts.append(sum(_is_faster(f) for f in figures))
        states = [s for f in figures for s in f.get("sizes", {}).values()]
        last = [sum(_is_silent(f) for f in figures), sum(bool(f.get("internal")) for f in asked)]
        cells = [*map(str, counts), f"{states.count('ok')} of {len(states)}", *map(str, last)]
        lines.append([tool, *cells, *(_against(rows, tool, other) for other in tools[1:])])
    return _lines(lines)


def _is_faster(figures: Mapping[str, Any]) -> bool:
    """By the lower end of the interval, at the first batch size."""
    timings = list(figures.get("speed", {}).values())
    return bool(timings) and timings[0]["low"] > 1


def _is_said(figures: Mapping[str, Any]) -> bool:
    words = ("is fixed to", "takes only", "is correct only")
    return any(w in figures.get("stderr", "") + figures.get("printed", "") for w in words)


def _is_silent(figures: Mapping[str, Any]) -> bool:
    lost = any(s != "ok" for s in figures.get("sizes", {}).values())
    return lost and not _is_said(figures)


def _against(rows: Sequence[Row], tool: str, other: str) -> str:
    """By more than `SAME`; a file that is not there or does not run is below."""
    signs = []
    for row in rows if tool != other else ():
        both = [row.get("tools", {}).get(t, {}).get("after", -1.0) for t in (tool, other)]
        if "task" in row and both[0] >= 0:
            signs.append((both[0] > both[1] + SAME) - (both[0] < both[1] - SAME))
    return ", ".join(str(signs.count(s)) for s in (1, 0, -1)) if signs else ""


def _table(rows: Sequence[Row]) -> str:
    timed = [t for r in rows for f in r.get("tools", {}).values() for t in f.get("speed", {})]
    sizes = sorted(set(timed), key=int)
    lines = [(*COLUMNS, *(f"speed, batch {s}" for s in sizes), *REST)]
    for row in rows:
        for tool, figures in row.get("tools", {}).items():
            if "error" not in figures:
                lines.append(_cells(row, tool, figures, sizes))
    return _lines(lines)


def _cells(
    row: Row, tool: str, figures: Mapping[str, Any], sizes: Sequence[str]
) -> tuple[str, ...]:
    worst = min(figures["outputs"].values(), key=lambda o: o["pooled_db"], default=None)
    return (
        row["name"],
        str(row["samples"]),
        tool,
        " ".join(f"`{r}`" for r in figures.get("remedies", ())),
        f"{worst['median_db']:.1f}, {worst['pooled_db']:.1f}" if worst else "",
        _task(row, figures),
        _number(figures.get("agreement"), 3),
        *(_speed(figures.get("speed", {}).get(s)) for s in sizes),
        f"{figures['bytes'] / row['float_bytes']:.2f}",
        _number(figures.get("integer"), 3),
        f"{figures['cpu_seconds']:.0f}",
        f"{figures['peak_gib']:.1f}",
        _sizes(figures),
        ", ".join(figures.get("internal", ())),
    )


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _task(row: Row, figures: Mapping[str, Any]) -> str:
    if "after" not in figures:
        return ""
    error = f" ± {figures['drop_error']:.3f}" if "drop_error" in figures else ""
    return f"{row['before']:.3f} -> {figures['after']:.3f}{error}"


def _speed(timing: Mapping[str, float] | None) -> str:
    return f"{timing['ratio']:.2f} ({timing['low']:.2f} to {timing['high']:.2f})" if timing else ""


def _sizes(figures: Mapping[str, Any]) -> str:
    states = list(figures.get("sizes", {}).values())
    if not states:
        return ""
    said = ", said" if states.count("ok") < len(states) and _is_said(figures) else ""
    return f"{states.count('ok')} of {len(states)}{said}"


def _others(rows: Sequence[Row]) -> str:
    """Refusals, sizes that qtool's files do not take, files that are not there or do not run."""
    lines = []
    for row in rows:
        if row["outcome"] == "failed":
            lines.append(f"- {row['network']}: not measured: {row['error']}")
        for tool, figures in row.get("tools", {}).items():
            if "error" in figures:
                lines.append(f"- {row['network']}, {tool}: no file: {figures['error']}")
            if tool.startswith("qtool"):
                wrong = {k: v for k, v in figures.get("sizes", {}).items() if v != "ok"}
                lines += [f"- {row['network']}, {tool}, at {k}: {v}" for k, v in wrong.items()]
    text = "\n".join(line.replace("|", "\\|") for line in lines)
    return f"## Without a file, and sizes that are not taken\n\n{text}" if lines else ""
