"""From a report to its pages: templates filled with the same objects that the JSON is made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from qtool.core import formats
from qtool.evaluation.report.page.figures import figures
from qtool.evaluation.report.report import Report

LIMIT = 30  # rows of a table in Markdown; the page and the JSON hold all


def render_pages(report: Report) -> dict[str, bytes]:
    """File name -> content: report.json, report.md and report.html."""
    text = report.text()
    context = {"report": report, "limit": LIMIT}
    html = (
        environment()
        .get_template("report.html")
        .render(**context, figures=_figures(report), data=_embedded_json(report))
    )
    markdown = environment().get_template("report.md").render(**context)
    return {
        "report.json": text.encode(),
        "report.md": markdown.encode(),
        "report.html": html.encode(),
    }


def _figures(report: Report) -> dict[str, Markup]:
    return {name: Markup(svg) for name, svg in figures(report).items()}  # noqa: S704  # drawn here, names escaped by the library


def _embedded_json(report: Report) -> Markup:
    """The JSON as the content of a script element, which it cannot end."""
    text = json.dumps(report.to_json(), separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704  # holds no `<`


@cache
def environment() -> jinja2.Environment:
    """The templates and how they write numbers."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("qtool.evaluation.report.page"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= FILTERS
    return made


def _cell(value: Any) -> str:
    """Text in a table of Markdown."""
    return str(value).replace("|", "\\|").replace("\n", " ")


FILTERS: dict[str, Callable[..., str]] = {
    "bytes": formats.size,
    "cell": _cell,
    "count": formats.count,
    "db": formats.db,
    "drop": lambda value, metric: metric.change(value),
    "general": formats.general,
    "measure": lambda value, metric: metric.text(value),
    "milliseconds": formats.milliseconds,
    "percent": formats.percent,
    "times": formats.times,
}
