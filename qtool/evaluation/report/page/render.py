"""Render a report as JSON, Markdown and HTML, all from the same objects, and write the pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from qtool.core import number_texts
from qtool.evaluation.latency.node_times import Profile
from qtool.evaluation.report.page.folder import replace_folder
from qtool.evaluation.report.page.graph_svg import network_view
from qtool.evaluation.report.page.network_graph import anchors
from qtool.evaluation.report.page.short_names import block_of
from qtool.evaluation.report.report import Report
from qtool.evaluation.report.verdict import best_in_column

FEW = 20  # nodes that need no blocks


@dataclass(frozen=True)
class BlockTime:
    """Time of a block.

    Attributes:
        name: its module.
        nodes: number of its nodes.
        microseconds: time in each model.
    """

    name: str
    nodes: int
    microseconds: tuple[float, ...]

    @property
    def loss(self) -> float:
        """Microseconds that the last model needs more than the first."""
        return self.microseconds[-1] - self.microseconds[0]


def block_times(profile: Profile) -> list[BlockTime]:
    """Return the blocks of a network of many nodes, those that lose most time first; none where
    most nodes are a block of their own."""
    members: dict[str, list[tuple[float, ...]]] = {}
    for node in profile.nodes:
        members.setdefault(block_of(node.name), []).append(node.microseconds)
    if len(profile.nodes) <= FEW or 2 * len(members) > len(profile.nodes):
        return []
    rows = [
        BlockTime(name, len(times), tuple(np.sum(times, 0).tolist()))
        for name, times in members.items()
    ]
    return sorted(rows, key=lambda row: -row.loss)


LIMIT = 30  # rows of a table in Markdown; HTML and JSON have all rows


def render_pages(report: Report) -> dict[str, bytes]:
    """Return the contents of report.json, report.md and report.html, by file name."""
    text = report.text()
    html = (
        environment()
        .get_template("report.html")
        .render(
            report=report,
            figures=_figures(report),
            network=network_view(report),
            anchors=anchors(report),
            data=_embedded_json(report),
        )
    )
    markdown = (
        environment()
        .overlay(finalize=_plain)
        .get_template("report.md")
        .render(report=report, limit=LIMIT)
    )
    return {
        "report.json": text.encode(),
        "report.md": markdown.encode(),
        "report.html": html.encode(),
    }


def write_report(folder: Path, report: Report) -> Report:
    """Replace a folder, which `check_folder` has accepted, by a report, and return the report.

    Raises:
        FileError: the folder cannot be written.
    """
    replace_folder(folder, render_pages(report))
    return report


def _figures(report: Report) -> Mapping[str, Any]:
    """Return the overview figures; none where the plotting library is not installed."""
    if find_spec("matplotlib") is None:
        return {}
    from qtool.evaluation.report.page.figures import figures

    return figures(report)


def _embedded_json(report: Report) -> Markup:
    """Return the JSON as the content of a script element, which it cannot close."""
    text = json.dumps(report.to_json(), separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704  # holds no `<`


@cache
def environment() -> jinja2.Environment:
    """Return the templates with the filters that format numbers."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("qtool.evaluation.report.page"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= FILTERS
    return templates


def _plain(value: Any) -> Any:
    """Return a value of a Markdown page, which takes HTML: a text without tags."""
    return number_texts.printable(value).replace("<", "&lt;") if isinstance(value, str) else value


def _cell(value: Any) -> str:
    """Escape text for a Markdown table."""
    return str(value).replace("|", "\\|").replace("\n", " ")


FILTERS: dict[str, Callable[..., Any]] = {
    "blocks": block_times,
    "bytes": number_texts.size,
    "cell": _cell,
    "count": number_texts.count,
    "db": number_texts.db,
    "drop": lambda value, metric: metric.change(value),
    "general": number_texts.general,
    "interval": lambda metric, model: metric.change_interval(model),
    "is_best": lambda report, column, model: model in best_in_column(report, column),
    "measure": lambda value, metric: metric.text(value),
    "milliseconds": number_texts.milliseconds,
    "percent": number_texts.percent,
    "times": number_texts.times,
}
