"""The page of the truth audit: printed and measured numbers, and what misses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.rows import Row, measured_on

__all__ = ["CHECKS", "measured_output", "page"]

TOO_HIGH = 3.0  # dB that a pooled SQNR may be above the measured one
SPEED = 0.10
SHARE = 0.005
WIDEST = 3.0  # dB, the median width of the intervals
FOUR_DIGITS = 5e-5
KINDS = {"estimate": "new", "calibration": "calibration"}
CLOSE = 0.02  # of F1, cosine and rank correlation
FROM_FILES = ("onnx", "onnx-1", "file")
SHARES = ("class", "token", "pixel")
OK, MISS, SILENT = "ok", "miss", "not printed"
HEAD = """# Truth audit: printed and measured numbers

`python benchmarks/truth_audit.py FOLDER --packages PACKAGES --realdata REALDATA --page THIS` makes
this page; its `--help` says what is needed. A row of `benchmarks/truth/cases.py` is one command in
a fresh process, without options of accuracy but those in its name. *Printed* is what its `--json`
says; *measured* is the exported file in ONNX Runtime or LiteRT against the float model (what
torch.onnx writes, the package's file, transformers), on samples of the same pool that the command
has not seen (1,000 where the table does not say another number), in batches of the calibration's
size; in mode dynamic, where ranges are those of a batch, one by one, too. SQNR is that of the
output that the command shows; where it names none, of the worst. In names of cases, the number
behind `n` is that of calibration samples, behind `b` their batch where it is not 32, behind `s` the
seed of the pool, of its split and of the weights. The table has the cases with a miss.

- **interval**: the printed 95 % interval of the median contains the measured median. That one is
  of a sample, too: exact intervals of 96 samples would contain it in 94 % of cases.
- **interval of calibration samples**: the same where there are too few samples to keep some for
  the estimate, and the output says that it is of calibration samples.
- **pooled**: the printed dB of all samples together is at most 3 dB above the measured one. A
  version that prints no estimate is judged by the one dB that it shows. Not counted where the
  output says that few samples decide or may decide, or that the calibration has not settled.
- **agreement**: what is printed of each output (share of equal classes, F1, cosine, order) holds on
  the new samples: in its interval; where none is printed, in the 95 % interval of a share of so
  many samples, others to 0.02. The column is the share of equal decisions or the mean cosine.
- **speed**: within 10 % of paired runs in turns, by thread CPU time, against the user's float file
  (of a torch model the faster one of those that torch.onnx's two exporters write, for .tflite the
  float file that qtool writes). That of WebAssembly is not measured here. The default exporter's
  file may be slower than the old one's (`dynamo=False`), so that its user sees a higher factor:
  recurrent layers, padding in front of convolutions.
- **size**: bytes of the file, external data among them. **float size**: of the user's ONNX file,
  where one is given.
- **integer**: share of MACs in integer kernels, counted by hand from the shapes in a profile of
  the runtime, to half a percent.
- **perplexity**: of the new texts, to four digits."""


def measured_output(row: Row) -> Mapping[str, float]:
    """SQNR of the output that the printed one belongs to: by name, by place, or the worst."""
    outputs = dict(row["measured"]["outputs"])
    together = outputs.pop("together")
    named = row["printed"]
    if named["output"] in ("all", "together"):
        return together
    if named["output"] in outputs:
        return outputs[named["output"]]
    if named["place"] is not None and named["place"] < len(outputs):
        return list(outputs.values())[named["place"]]
    key = "median_db" if named["median_db"] is not None else "pooled_db"
    return min(outputs.values(), key=lambda figures: figures[key])


def _interval(row: Row) -> str:
    """Nothing where it is of calibration samples and says so."""
    result = _covers(row)
    return "" if result != SILENT and row["printed"].get("kind") == "calibration" else result


def _calibration_interval(row: Row) -> str:
    return "" if _interval(row) else _covers(row)


def _covers(row: Row) -> str:
    bounds = row["printed"]["interval_db"]
    if not bounds or None in bounds:
        return SILENT
    return OK if bounds[0] <= _as_printed(row)["median_db"] <= bounds[1] else MISS


def _as_printed(row: Row) -> Mapping[str, float]:
    """Measured one by one where the printed figures are."""
    one = row["printed"].get("batch") == 1 and row["measured"].get("one_by_one")
    return measured_output({**row, "measured": {"outputs": one}} if one else row)


def _pooled(row: Row) -> str:
    value = row["printed"]["pooled_db"]
    if value is None:
        return SILENT
    high = value - _as_printed(row)["pooled_db"] > TOO_HIGH
    return MISS if high and not row["printed"]["few_samples"] else OK


def _agreement(row: Row) -> str:
    said, real = row["printed"].get("agreements"), row["measured"].get("agreements")
    if not said:
        return SILENT if row["measured"]["agreement"] is not None else ""
    pairs = [(a, value) for a, value in zip(said, real, strict=True) if value is not None]
    return OK if all(_holds(a, value) for a, value in pairs) else MISS


def _holds(said: Mapping[str, Any], value: float) -> bool:
    """Whether a measured agreement lies in the printed interval; without one, in that of a share of
    so many samples, and other kinds within `CLOSE`."""
    if said["interval"]:
        low, high = said["interval"]
    elif said["kind"] in SHARES:
        low, high = _wilson(said["value"], said["samples"])
    else:
        low, high = said["value"] - CLOSE, said["value"] + CLOSE
    return bool(low <= value <= high)


def _wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    z = 1.96**2 / count
    middle = (share + z / 2) / (1 + z)
    reach = 1.96 / (1 + z) * (share * (1 - share) / count + z / (4 * count)) ** 0.5
    return middle - reach, middle + reach


def _speed(row: Row) -> str:
    value, timing = row["printed"]["speed"], row["measured"]["speed"]
    if timing is None or "onnxruntime-web" in row["printed"].get("speed_runtime", ""):
        return ""
    return SILENT if value is None else _near(value, timing["ratio"], SPEED * timing["ratio"])


def _equal(key: str, tolerance: float = 0.0, relative: bool = False) -> Callable[[Row], str]:
    """Compare one number; nothing where it could not be measured."""

    def check(row: Row) -> str:
        value, real = row["printed"][key], row["measured"][key]
        if real is None:
            return ""
        return (
            SILENT if value is None else _near(value, real, tolerance * (real if relative else 1))
        )

    return check


def _float_size(row: Row) -> str:
    """Of ONNX files alone: a user of a module has none."""
    return _equal("float_size_bytes")(row) if row["case"]["form"] in FROM_FILES else ""


def _near(value: float, real: float, tolerance: float) -> str:
    return OK if abs(value - real) <= tolerance else MISS


CHECKS: dict[str, Callable[[Row], str]] = {
    "interval": _interval,
    "interval of calibration samples": _calibration_interval,
    "pooled": _pooled,
    "agreement": _agreement,
    "speed": _speed,
    "size": _equal("size_bytes"),
    "float size": _float_size,
    "integer": _equal("integer_share", SHARE),
    "perplexity": _equal("perplexity", FOUR_DIGITS, relative=True),
}


def page(measured: Mapping[str, Sequence[Row]]) -> str:
    """The whole page, of the rows of each version."""
    parts = [HEAD, _summary(measured)]
    for label, rows in measured.items():
        parts += [f"## {label}", measured_on(rows), _table(rows), _others(rows)]
    return "\n\n".join(p for p in parts if p) + "\n"


def _good(rows: Sequence[Row]) -> list[Row]:
    return [r for r in rows if r["outcome"] == "ok"]


def _summary(measured: Mapping[str, Sequence[Row]]) -> str:
    lines = [["", *measured], ["---"] * (len(measured) + 1)]
    lines.append(["cases", *(str(len(r)) for r in measured.values())])
    lines.append(["converted and measured", *(str(len(_good(r))) for r in measured.values())])
    for name, check in CHECKS.items():
        cells = []
        for rows in measured.values():
            results = [check(r) for r in _good(rows)]
            counted = results.count(OK), results.count(MISS), results.count(SILENT)
            text = f"{counted[0]} of {counted[0] + counted[1]}" if any(counted[:2]) else ""
            silent = f"{counted[2]} not printed" if counted[2] else ""
            cells.append(", ".join(t for t in (text, silent) if t))
        lines.append([name, *cells])
    widths = [_width(_good(rows)) for rows in measured.values()]
    lines.append([f"median width of intervals (at most {WIDEST:g} dB)", *widths])
    missed = [sum(bool(_missed(r)) for r in _good(rows)) for rows in measured.values()]
    lines.append(["cases with a miss", *(str(n) for n in missed)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _width(rows: Sequence[Row]) -> str:
    bounds = [r["printed"]["interval_db"] for r in rows if r["printed"]["interval_db"]]
    widths = sorted(b[1] - b[0] for b in bounds if None not in b)
    return f"{widths[len(widths) // 2]:.1f} dB" if widths else "not printed"


def _missed(row: Row) -> list[str]:
    return [name for name, check in CHECKS.items() if check(row) == MISS]


COLUMNS = (
    *("case", "new", "printed dB", "measured median, pooled, worst dB", "printed agreement"),
    *("measured", "printed speed", "measured", "printed integer", "measured", "misses"),
)


def _table(rows: Sequence[Row]) -> str:
    """Cases with a miss: the rows of the others say nothing more than the counts."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    lines += [" | ".join(_cells(r)) for r in _good(rows) if _missed(r)]
    return "\n".join(f"| {line} |" for line in lines)


def _measured_db(row: Row) -> str:
    """With the median of single samples where ranges are those of the batch."""
    figures = measured_output(row)
    text = ", ".join(f"{figures[k]:.1f}" for k in ("median_db", "pooled_db", "worst_db"))
    one = row["measured"].get("one_by_one")
    if not one:
        return text
    alone = measured_output({**row, "measured": {"outputs": one}})
    return f"{text} (one by one {alone['median_db']:.1f})"


def _cells(row: Row) -> list[str]:
    said, real = row["printed"], row["measured"]
    figures, timing = measured_output(row), real["speed"]
    return [
        row["network"],
        f"{int(figures['samples'])}",
        _said_db(said),
        _measured_db(row),
        _said_agreement(said),
        _number(real["agreement"], 4),
        _number(said["speed"], 2),
        _number(timing and timing["ratio"], 2),
        _number(said["integer_share"], 3),
        _number(real["integer_share"], 3),
        ", ".join(_missed(row)),
    ]


def _said_db(said: Mapping[str, Any]) -> str:
    pooled = _number(said["pooled_db"], 1)
    samples = f"({said['samples']} {KINDS[said['kind']]} samples)"
    if said.get("batch"):
        samples += f", batch {said['batch']}"
    if said["median_db"] is None:
        return f"{pooled} {samples}"
    low, high = said["interval_db"] or (None, None)
    interval = f"{_number(low, 1)} to {_number(high, 1)}"
    return f"{said['median_db']:.1f}, {interval}; pooled {pooled} {samples}"


def _said_agreement(said: Mapping[str, Any]) -> str:
    return ", ".join(f"{a['kind']} {a['value']:.4f}" for a in said.get("agreements") or ())


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _others(rows: Sequence[Row]) -> str:
    """Cases that are not in the table, or that were measured in another way."""
    lines = [
        f"- {r['network']}: {r['outcome']}: {r['error']}" for r in rows if r["outcome"] != "ok"
    ]
    again = [r["network"] for r in _good(rows) if r.get("again")]
    if again:
        lines.append(f"- refused at first, measured with `--batch-size 1`: {', '.join(again)}")
    lines += [
        f"- {r['network']}: in whole batches, since the file takes no other: {r['last_batch']}"
        for r in _good(rows)
        if r.get("last_batch")
    ]
    return "Other than by the plain command:\n\n" + "\n".join(lines) if lines else ""
