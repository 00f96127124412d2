"""Numbers and tables as text, for commands and report pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def db(value: float | None) -> str:
    """A ratio in dB; None: there is no error."""
    return "no error" if value is None else f"{value:.1f}"


def percent(value: float | None, digits: int = 2) -> str:
    """A share, 0 to 1: "100 %" only if it is all, "0 %" only if it is nothing."""
    if value is None:
        return ""
    if value in (0, 1):
        return f"{100 * value:.0f} %"
    scaled, step = 100 * value, 10.0**-digits
    if 0 < value < 1:  # not rounded to nothing or to all
        scaled = min(max(scaled, step), 100 - step)
    return f"{scaled:.{digits}f} %"


def share(value: float) -> str:
    """A share of work with three digits, 0 to 1; "100 %" and "0 %" as `percent`."""
    if value in (0, 1):
        return percent(value)
    return f"{min(max(100 * value, 0.1), 99.9):.3g} %"


def part(value: int, whole: int) -> str:
    """A number out of a number: "all 450", "449 of 450"."""
    return f"all {whole:,}" if value == whole > 1 else f"{value:,} of {whole:,}"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return sizes of dimensions in words: "height 64, width 96"."""
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def quantity(value: int, noun: str) -> str:
    """A number of things: "1 sample", "1,200 samples"."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def size(value: int) -> str:
    """A number of bytes, with three digits."""
    if value < 1000:
        return f"{value} bytes"
    scaled, units = value / 1024, ["KiB", "MiB", "GiB"]
    while scaled >= 999.5 and len(units) > 1:
        scaled, units = scaled / 1024, units[1:]
    return f"{_three_digits(scaled)} {units[0]}"


def _three_digits(value: float) -> str:
    """Without an exponent; further digits before the point stay."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def count(value: int) -> str:
    """A large number with a unit."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return str(value)


def times(value: float) -> str:
    """A ratio of latencies."""
    return f"{value:.2f}x"


def milliseconds(value: float) -> str:
    """A duration with three digits, in seconds from 1000 ms on."""
    if value >= 999.5:
        return f"{_three_digits(value / 1000)} s"
    return f"{_three_digits(value)} ms" if value >= 1 else f"{value:#.3g} ms"


def general(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def printable(text: str) -> str:
    """Return a text for a terminal or a page, without control characters but line breaks.

    Names of layers come from files of others, and may hold control sequences.
    """
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Return a text without control characters and line breaks, which a name may hold."""
    return printable(text).replace("\n", "\\n")


_WIDEST = 120  # characters of a cell; names come from files of others


def _cell(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _WIDEST else f"{text[:80]}...{text[-37:]}"


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", align: str = ""
) -> str:
    """Return a table as lines of text.

    Args:
        columns: headers.
        rows: cells; of long ones the ends are shown.
        title: line above the table.
        align: "l" (left) or "r" (right) per column; by default all but the first are right.
    """
    lines = [tuple(map(_cell, line)) for line in [columns, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = align or "l" + "r" * (len(widths) - 1)
    justify = [str.ljust if side == "l" else str.rjust for side in sides]
    text = [
        "  ".join(f(cell, w) for f, cell, w in zip(justify, line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([title, *text] if title else text)
