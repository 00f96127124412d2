"""The page of results: what was measured of every network, from the records of measure.py."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from benchmarks.rows import Row, measured_on

__all__ = ["below_bf16", "page"]

FAR = 25.0  # dB below the yardstick
ENOUGH = 20.0  # dB under which a conversion warns
SHOWN = 5
OUTCOMES = ("ok", "refused", "wrong", "traceback", "torch.onnx fails")
HEAD = """# Networks that qtool had never seen

What other people have: networks written in the ways in which they are written, and those of timm,
transformers and torchvision, converted untouched and with default settings.
`python benchmarks/unseen -o FOLDER --page PAGE` writes this page. Weights are random
(BatchNorms have the statistics of their inputs) and networks are narrow, calibrated with 12 samples
and judged on 6 others: the page shows what converts, what runs in integers, and that nothing is
wrong. Of accuracy it says little, since an untrained network amplifies any noise. The yardstick is
therefore the same network wholly in bfloat16.

- **outcome**: *ok*, converted and verified; *refused*, in a sentence; *wrong*, the file was not
  what was planned (and was not written); *traceback*, an error that is no sentence; *torch.onnx
  fails*, where there is no ONNX file to begin with.
- **integer MACs**: share in integer kernels, read from the graph that the runtime executes; in
  brackets that of the layers with weights.
- **float**: kernels that the runtime runs in float.
- **equal**: output values of the runtime and of qtool's integer engine that are equal to the last
  bit. Where it is not all of them, the rest depends on nodes in float that round differently.
- **SQNR**: of each output against the eager float model, in dB; **bf16**: of the worst output of
  the yardstick.
- **sizes**: it was run at another batch and, where dynamic, another length.
- **speed**: float / int8, one sample, one thread, under load; empty with `--seconds 0`.
"""
COLUMNS = (
    *("network", "outcome", "parameters", "integer MACs", "float", "equal", "SQNR", "bf16"),
    *("sizes", "s", "speed"),
)


def page(rows: Sequence[Row]) -> str:
    """The whole page."""
    groups = list(dict.fromkeys(r["group"] for r in rows))
    parts = [HEAD, measured_on(rows), _summary(rows, groups), _refused(rows), _low(rows)]
    for group in groups:
        parts += [
            f"## {group[0].upper()}{group[1:]}",
            _table([r for r in rows if r["group"] == group]),
        ]
    return "\n\n".join(p.strip() for p in parts if p) + "\n"


def _summary(rows: Sequence[Row], groups: Sequence[str]) -> str:
    counted = [r for r in rows if r["outcome"] != "torch.onnx fails"]
    good = sum(r["outcome"] == "ok" for r in counted)
    left = len(rows) - len(counted)
    apart = f" ({left} more, which torch.onnx cannot write, not counted)" if left else ""
    lines = [f"**{good} of {len(counted)} networks convert and verify{apart}.**", ""]
    lines += [f"| networks | run | {' | '.join(OUTCOMES)} |", f"|---|{'---:|' * 6}"]
    for group in [*groups, ""]:
        found = Counter(r["outcome"] for r in rows if group in ("", r["group"]))
        cells = [str(found.total()), *(str(found[outcome] or "") for outcome in OUTCOMES)]
        lines.append(f"| {group or '**all**'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _refused(rows: Sequence[Row]) -> str:
    lines = ["## Not converted, in qtool's words"]
    lines += [
        f"- `{r['network']}` ({r['outcome']}): {_short(r['error'], 420)}"
        for r in rows
        if r["outcome"] != "ok"
    ]
    return "\n".join([lines[0], "", *lines[1:]])


def below_bf16(row: Row) -> list[tuple[str, float, float]]:
    """(output, dB, dB in bfloat16) of outputs that are far below the yardstick."""
    if row["outcome"] != "ok" or not row["bf16"]:
        return []
    found = zip(row["names"], row["sqnr"], row["bf16"], strict=False)
    return [(n, a, b) for n, a, b in found if a is not None and b is not None and b - a > FAR]


def _low(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        found = [f for f in below_bf16(row) if f[2] < 900]
        if not found:
            continue
        each = ", ".join(f"{n} {a:.1f} dB ({b:.1f})" for n, a, b in found[:3])
        said = [s for s in row["said"] if s.startswith(("warning", "note", "int8"))]
        lines.append(
            f"- `{row['network']}`: {each}. Said: {_short(' / '.join(said), 300) or 'nothing'}"
        )
    if not lines:
        return ""
    title = f"## Outputs more than {FAR:.0f} dB below their bfloat16 yardstick, and what was said"
    return "\n".join([title, "", *lines])


def _table(rows: Sequence[Row]) -> str:
    rule = "|".join(["---", "---", *["---:"] * (len(COLUMNS) - 2)])
    return "\n".join([f"| {' | '.join(COLUMNS)} |", f"|{rule}|", *map(_line, rows)])


def _line(row: Row) -> str:
    if row["outcome"] != "ok":
        cells = [f"**{row['outcome']}**", *[""] * (len(COLUMNS) - 2)]
    else:
        kernels = ", ".join(f"{n} {op}" for op, n in row["in_float"].items())
        low = [db for db in row["bf16"] or [] if db is not None and db < 900]
        cells = [
            "ok",
            f"{row['parameters'] / 1e6:.2f} M",
            f"{_percent(row['share'])} ({_percent(row['weighted_share'])})",
            kernels or "none",
            _percent(row["identical"] / max(row["elements"], 1)),
            _decibels(row["sqnr"]),
            f"{min(low):.1f}" if low else "",
            _short(row["other"], 40),
            f"{row['seconds']:.0f}",
            f"{row['ratio']:.2f}x" if row["ratio"] else "",
        ]
    return f"| {' | '.join([row['network'], *cells])} |"


def _decibels(found: Sequence[float | None]) -> str:
    shown = ["-" if db is None else "no noise" if db > 900 else f"{db:.1f}" for db in found]
    return ", ".join(shown[:SHOWN]) + (" ..." if len(shown) > SHOWN else "")


def _percent(share: float) -> str:
    """Never 100 % for what is less."""
    return "100 %" if share >= 1 else f"{min(100 * share, 99.99):.2f} %"


def _short(text: str, length: int) -> str:
    text = re.sub(r"\x1b\[\d*m", "", " ".join(text.split())).replace("|", "/")
    text = re.sub(r"[\w./-]*/(?=(?:torch|torchvision|transformers|timm)/\S+\.py:)", "", text)
    text = re.sub(r"/[\w./-]*/(?=(?:benchmarks|timm|torchvision|transformers)/)", "", text)
    text = re.sub(r"/[\w./-]*/site-packages/", "", text)
    text = re.sub(r"(?<!\w)/(?:\w+/)*tmp\w*/", "", text).replace("<", "&lt;")
    return text if len(text) <= length else f"{text[: length - 3]}..."
