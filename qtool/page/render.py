"""From a report to its pages: templates filled with the same objects that the JSON is made of."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from qtool.analysis.report import Report
from qtool.page.figures import figures

__all__ = ["pages"]

LIMIT = 30  # rows of a table in Markdown; the page and the JSON hold all


def pages(report: Report) -> dict[str, bytes]:
    """File name -> content: report.json, report.md and report.html."""
    text = report.text()
    context = {"report": report, "limit": LIMIT}
    html = (
        _environment()
        .get_template("report.html")
        .render(**context, figures=_drawn(report), data=_embedded(report))
    )
    markdown = _environment().get_template("report.md").render(**context)
    return {
        "report.json": text.encode(),
        "report.md": markdown.encode(),
        "report.html": html.encode(),
    }


def _drawn(report: Report) -> dict[str, Markup]:
    return {name: Markup(svg) for name, svg in figures(report).items()}  # noqa: S704  # drawn here, names escaped by the library


def _embedded(report: Report) -> Markup:
    """The JSON as the content of a script element, which it cannot end."""
    text = json.dumps(report.to_json(), separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704  # holds no `<`


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("qtool.page"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= FILTERS
    return made


# --- how numbers are written -----------------------------------------------------------------


def _db(value: float | None) -> str:
    return "no error" if value is None else f"{value:.1f}"


def _percent(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{100 * value:.{digits}f} %"


def _bytes(value: int) -> str:
    return f"{value / 1024:.0f} KiB" if value < 2**20 else f"{value / 2**20:.2f} MiB"


def _count(value: int) -> str:
    """A large number with a unit."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return str(value)


def _times(value: float) -> str:
    return f"{value:.2f}x"


def _milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def _general(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _measure(value: float, metric: Any) -> str:
    """A metric's value in its own unit."""
    return _percent(value) if metric.percent else f"{value:.5g}"


def _drop(value: float, metric: Any) -> str:
    """What was lost: with a minus where the model is worse."""
    if value == 0:
        return "no change"
    return f"{-100 * value:+.2f} points" if metric.percent else f"{-value:+.3g}"


def _cell(value: Any) -> str:
    """Text in a table of Markdown."""
    return str(value).replace("|", "\\|").replace("\n", " ")


FILTERS: dict[str, Any] = {
    "bytes": _bytes,
    "cell": _cell,
    "count": _count,
    "db": _db,
    "drop": _drop,
    "general": _general,
    "measure": _measure,
    "milliseconds": _milliseconds,
    "percent": _percent,
    "times": _times,
}
