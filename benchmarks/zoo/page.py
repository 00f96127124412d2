"""The page of benchmarks/zoo: what was measured of every network, from records of measure.py."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.rows import Row, measured_on

__all__ = ["page"]

HEAD = """# Networks: what converts, and what runs in integers

Every network below is converted with default settings and without a change to it.
`python benchmarks/zoo -o FOLDER --page PAGE` writes this page. Weights are random,
norms have the statistics of the inputs (smooth random images, random tokens with padding): it shows
what converts, what runs in integers, that the file is right, and how fast it is. It says little
about accuracy, since untrained networks amplify errors and have no margin between classes; trained
ones are in docs/what-works.md.

- **integer MACs**: share of all multiply-accumulates in integer kernels, read from the graph that
  the runtime executes, and in brackets that of the layers with weights alone. What is missing to
  100 % are products of two activations (attention).
- **float**: convolutions, adds and concats that the runtime runs in float.
- **SQNR**: signal to quantization noise of the worst output on held-out inputs.
- **equal**: outputs that are the same to the last bit in the runtime and in qtool's integer engine.
  Parts that are planned in float run in the runtime's own kernels in both.
- **sizes**: it was run with another batch and, where the sequence is dynamic, another length.
- **speed**: float / int8, median of paired runs, one sample, one thread.
"""
COLUMNS = (
    *("network", "parameters", "MACs", "integer MACs", "float", "SQNR", "equal", "sizes"),
    *("convert + verify", "peak memory", "float", "int8", "speed"),
)
RIGHT = len(COLUMNS) - 1  # all but the name


def page(rows: Sequence[Row]) -> str:
    """The whole page; a network that failed is a row that says so."""
    parts = [HEAD, measured_on(rows), _summary(rows)]
    for group in dict.fromkeys(r["group"] for r in rows):
        members = [r for r in rows if r["group"] == group]
        parts += [f"## {group}", _table(members)]
    parts.append("## What stays in float, and what was rewritten")
    parts += [_details(r) for r in rows if "error" not in r]
    return "\n\n".join(p.strip() for p in parts if p) + "\n"


def _summary(rows: Sequence[Row]) -> str:
    done = [r for r in rows if "error" not in r]
    whole = sum(r["weighted_share"] == 1.0 for r in done)
    faster = sum(r["ratio"] > 1 for r in done)
    return (
        f"**{len(done)} of {len(rows)} networks convert and verify.** In {whole} of them all "
        f"layers with weights run in integer kernels; {faster} are faster than float."
    )


def _table(rows: Sequence[Row]) -> str:
    rule = "|".join(["---", *["---:"] * RIGHT])
    return "\n".join([f"| {' | '.join(COLUMNS)} |", f"|{rule}|", *map(_line, rows)])


def _line(row: Row) -> str:
    if "error" in row:
        cells = [f"failed: {_short(row['error'], 200)}", *[""] * (RIGHT - 1)]
    else:
        in_float = ", ".join(f"{n} {op}" for op, n in row["float_kernels"].items())
        cells = [
            f"{row['parameters'] / 1e6:.1f} M",
            f"{row['macs'] / 1e6:,.0f} M",
            f"{_percent(row['share'])} ({_percent(row['weighted_share'])})",
            in_float or "none",
            f"{row['sqnr_db']:.1f} dB",
            _percent(row["identical"] / row["elements"]),
            "yes" if row["sizes"] else "no",
            f"{row['convert']:.0f} + {row['export']:.0f} s",
            f"{row['mebibytes'] / 1024:.1f} GiB",
            f"{row['float_ms']:.2f} ms",
            f"{row['int8_ms']:.2f} ms",
            f"{row['ratio']:.2f}x",
        ]
    return f"| {' | '.join([row['network'], *cells])} |"


def _percent(share: float) -> str:
    """Never 100 % for what is less."""
    if share >= 1:
        return "100 %"
    return f"{min(100 * share, 99.99):.2f} %"


def _details(row: Row) -> str:
    lines = [f"### {row['network']}"]
    nodes = row["integer"] + row["moves"] + row["float_nodes"]
    lines.append(
        f"{nodes} nodes: {row['integer']} in integers, {row['moves']} that move codes, "
        f"{row['float_nodes']} in float."
    )
    why: dict[str, list[str]] = {}
    for op, reason, count in row["reasons"]:
        name = op.removesuffix(".default")
        why.setdefault(reason, []).append(f"{name}{f' x{count}' if count > 1 else ''}")
    lines += [f"- float: {', '.join(ops)}: {reason}" for reason, ops in why.items()]
    if row["rewrites"]:
        lines.append("- rewritten: " + ", ".join(f"{name} x{n}" for name, n in row["rewrites"]))
    lines += [f"- {_short(note, 160)}" for note in row["notes"][:3]]
    if row["costliest"]:
        lines.append("- slower than float. Node, microseconds in float, in integers:")
        lines += [f"  - `{n}` {k} {a:.0f}, {j} {b:.0f}" for n, k, a, j, b in row["costliest"]]
    return "\n".join([lines[0], "", lines[1], *([""] if lines[2:] else []), *lines[2:]])


def _short(text: str, length: int) -> str:
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= length else f"{text[: length - 3]}..."
