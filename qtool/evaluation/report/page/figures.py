"""Overview figures as SVG in the colours of the page: light, dark or print.

matplotlib draws with placeholder colours, which are replaced by variables of the style sheet. Text
stays text; bars and points link to rows of the tables and have tooltips. Histograms of single
layers are drawn by report.js from the JSON when a layer is selected: hundreds of finished drawings
would be most of the file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qtool.core import number_texts
from qtool.core.number_texts import db, percent
from qtool.evaluation.measure.layer_errors import LayerError
from qtool.evaluation.report.page.network_graph import anchors
from qtool.evaluation.report.page.short_names import block_of, short_name, short_names
from qtool.evaluation.report.report import Report

INK, MUTED, GRID = "#010203", "#010204", "#010205"
SERIES = ("#010211", "#010212", "#010213", "#010214", "#010215", "#010216")
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)"} | {
    color: f"var(--s{i})" for i, color in enumerate(SERIES)
}
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "qtool",  # the same report gives the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
}
WIDTH = 10.4  # inches: 749 units of the drawing, as wide as the tables
BARS = 15
OUTLIER = 4  # a bar more than this many times as long as the second one ends at the edge
MAX_NAME = 34  # characters of a name next to a bar
LINK = "target:"
TICKS, TICK_NAME = 20, 20  # names below points, and their characters
LEGEND: Any = {
    "loc": "lower right",
    "bbox_to_anchor": (1, 1),
    "ncols": 2,
    "frameon": False,
    "borderaxespad": 0,
}
"""A legend above the upper right corner."""


@dataclass(frozen=True)
class Drawing:
    """A figure as SVG, with its title."""

    title: str
    drawing: Markup


@dataclass(frozen=True)
class Target:
    """What a bar or a point leads to: the id of an element, and the text of its tooltip."""

    anchor: str
    tooltip: str


def figures(report: Report) -> dict[str, Drawing]:
    """Return every figure that the report has data for, by name."""
    drawings = {name: draw(report) for name, draw in FIGURES.items()}
    return {name: drawing for name, drawing in drawings.items() if drawing is not None}


def _speed(report: Report) -> Drawing | None:
    """Speed-up of each model at each batch size, with its interval and a line at 1."""
    several = len(report.models) > 2
    rows = [
        (f"{m.name}\n{t.what}" if several else t.what, t.ratios[i], SERIES[i % len(SERIES)])
        for t in report.latency
        for i, m in enumerate(report.models)
        if i
    ]
    if not rows:
        return None

    def draw(axes: Axes) -> None:
        axes.axvline(1, color=INK, linewidth=1)
        axes.text(
            1, -0.75, "speed of the reference", ha="center", va="bottom", color=MUTED, fontsize=8
        )
        for y, (_, ratio, color) in enumerate(rows):
            axes.plot([ratio.p10, ratio.p90], [y, y], color=color, linewidth=2, alpha=0.4)
            axes.plot([ratio.low, ratio.high], [y, y], color=color, linewidth=6)
            axes.plot([ratio.median], [y], "o", color=color, markersize=7)
            axes.text(ratio.median, y - 0.22, f"{ratio.median:.2f}x", ha="center", va="bottom")
        axes.set_yticks(range(len(rows)), [escape_math(label) for label, _, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.8)
        fastest = max(1.0, *(r.median for _, r, _ in rows))
        shown = max(min(max(r.high, r.p90), 1.6 * fastest) for _, r, _ in rows)
        axes.set_xlim(0, 1.12 * max(shown, fastest))  # a line of outliers may leave the drawing
        axes.set_xlabel("speed-up (thick: 95 % interval, thin: 80 % of runs)", loc="right")
        axes.grid(axis="y", visible=False)

    return draw_svg("Speed-up over the reference", 0.9 + 0.45 * len(rows), draw)


def _nodes(report: Report) -> Drawing | None:
    """Slowest nodes of the reference and the last model."""
    if report.profile is None or not report.profile.nodes:
        return None
    last = len(report.models) - 1
    numbered = sorted(enumerate(report.profile.nodes), key=lambda n: -max(n[1].microseconds))
    nodes = [node for _, node in numbered[:BARS]]
    limit = _axis_limit([max(node.microseconds) / 1000 for node in nodes])
    targets = [
        Target(f"node-{number}", f"{node.name}: {us:.0f} µs in {report.models[i].name}")
        for i in (0, last)
        for number, node in numbered[:BARS]
        for us in (node.microseconds[i],)
    ]

    def draw(axes: Axes) -> None:
        for i in (0, last):
            offset = -0.2 if i == 0 else 0.2
            rows = [y + offset for y in range(len(nodes))]
            widths = [n.microseconds[i] / 1000 for n in nodes]
            bars = axes.barh(rows, widths, height=0.38, color=SERIES[i % len(SERIES)])
            for number, bar in enumerate(bars, 0 if i == 0 else len(nodes)):
                bar.set_url(_link(number))
            name = report.models[i].name
            bars.set_label(escape_math(name))
            for y, time in zip(rows, widths, strict=True):
                if time > limit:  # the bar leaves the drawing
                    text = f"{escape_math(name)}: {number_texts.milliseconds(time)} "
                    axes.text(limit, y, text, ha="right", va="center", color=INK, fontsize=8)
        axes.legend(**LEGEND)
        axes.set_yticks(range(len(nodes)), _labels([n.name for n in nodes]))
        axes.set_ylim(len(nodes) - 0.4, -0.6)
        axes.set_xlim(0, limit)
        axes.set_xlabel(f"ms per run, batch {report.profile.batch if report.profile else 0}")
        axes.grid(axis="y", visible=False)

    return draw_svg("Slowest nodes", 0.8 + 0.3 * len(nodes), draw, targets)


def _axis_limit(times: Sequence[float]) -> float:
    """Return the end of an axis for bars, the longest first; one outlier leaves the drawing."""
    second = times[1] if len(times) > 1 else 0.0
    return 1.2 * (times[0] if times[0] <= OUTLIER * second or not second else second)


def _worst_layers(report: Report) -> Drawing | None:
    """Layers with the largest share of the output error."""
    if report.layers is None or not report.layers.layers:
        return None
    worst = sorted(report.layers.layers, key=lambda e: -e.only_share)[:BARS]
    targets = _layer_targets(report, worst)

    def draw(axes: Axes) -> None:
        shares = [100 * e.only_share for e in worst]
        for number, bar in enumerate(
            axes.barh(range(len(worst)), shares, height=0.6, color=SERIES[1])
        ):
            bar.set_url(_link(number))
        for y, share in enumerate(shares):
            text, apart = f"{share:.1f} %", (4, 0)
            axes.annotate(
                text, (share, y), apart, textcoords="offset points", va="center", fontsize=8
            )
        axes.set_yticks(range(len(worst)), _labels([e.name for e in worst]))
        axes.set_ylim(len(worst) - 0.4, -0.6)
        axes.set_xlim(0, 1.15 * max(shares[0], 1e-9))
        axes.set_xlabel("output error with only this layer quantized, in % of the total error")
        axes.grid(axis="y", visible=False)

    return draw_svg("Most sensitive layers", 0.8 + 0.25 * len(worst), draw, targets)


def _error_along_network(report: Report) -> Drawing | None:
    """SQNR along the network: of each layer alone, and accumulated."""
    if report.layers is None or not report.layers.layers:
        return None
    layers = report.layers.layers
    targets = _layer_targets(report, layers)
    views: tuple[tuple[str, str, Callable[[LayerError], float | None]], ...] = (
        ("of the layer itself", SERIES[0], lambda e: e.alone_db),
        ("accumulated", SERIES[1], lambda e: e.accumulated_db),
    )

    def draw(axes: Axes) -> None:
        for label, color, value in views:
            points = [(i, v) for i, e in enumerate(layers) if (v := value(e)) is not None]
            if points:
                xs, ys = zip(*points, strict=True)
                dots = axes.scatter(xs, ys, s=[18.0] * len(xs), c=[color] * len(xs), zorder=3)
                dots.set_urls([_link(x) for x in xs])
                dots.set_label(label)
        axes.legend(**LEGEND)
        axes.set_ylabel("SQNR in dB (higher is better)")
        ticks = _block_starts([e.name for e in layers])
        names = [short_name(escape_math(name), TICK_NAME) for name in ticks.values()]
        axes.set_xticks(list(ticks), names, rotation=35, ha="right", rotation_mode="anchor")
        axes.tick_params(axis="x", labelsize=7.5)

    return draw_svg("Error along the network", 3.4, draw, targets)


def _layer_targets(report: Report, layers: Sequence[LayerError]) -> list[Target]:
    rows = anchors(report)
    return [
        Target(
            rows[e.name],
            f"{e.name}: own {db(e.alone_db)} dB, accumulated {db(e.accumulated_db)} dB, "
            f"{percent(e.only_share, 1)} of the output error",
        )
        for e in layers
    ]


FIGURES: dict[str, Callable[[Report], Drawing | None]] = {
    "speed": _speed,
    "nodes": _nodes,
    "hurting": _worst_layers,
    "depth": _error_along_network,
}


def draw_svg(
    title: str, height: float, draw: Callable[[Axes], None], targets: Sequence[Target] = ()
) -> Drawing:
    """Return one drawing, `height` inches high, in the colours of the page.

    Args:
        draw: draws; an artist whose URL is that of `_link` leads to a target.
        targets: targets, which the numbers of `_link` point to.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.tick_params(length=0)
        buffer = io.StringIO()
        plain: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=plain)
    text = buffer.getvalue()
    svg = _inline(text[text.index("<svg") :], title, targets)
    return Drawing(title, Markup(svg))  # noqa: S704  # drawn here, names escaped by the library


def _inline(svg: str, title: str, targets: Sequence[Target]) -> str:
    """Return the drawing for embedding: without a size, with colour variables and unique ids."""
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, variable)
    head, _, rest = svg.partition(">")
    box = head[head.index("viewBox") :].split('"')[1]
    prefix = "".join(title.split()).lower()
    for mark in ('id="', 'href="#', "url(#"):  # one page holds several drawings
        rest = rest.replace(mark, f"{mark}{prefix}-")

    def link(match: re.Match[str]) -> str:
        target = targets[int(match[1])]
        text = escape(target.tooltip)
        return f'<a href="#{target.anchor}" aria-label="{text}"><title>{text}</title>'

    rest = re.sub(rf'<a xlink:href="{LINK}(\d+)"[^>]*>', link, rest)
    role = "group" if targets else "img"
    attributes = f'viewBox="{box}" role="{role}" aria-label="{title}" class="figure"'
    links = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f"<svg {attributes} {links}>{rest}"


def _link(number: int) -> str:
    """Return the URL that stands for a target until its element is known."""
    return f"{LINK}{number}"


def _labels(names: Sequence[str]) -> list[str]:
    """Return names next to bars."""
    return [escape_math(name) for name in short_names(names, MAX_NAME)]


def _block_starts(names: Sequence[str]) -> dict[int, str]:
    """Return where blocks of layers start, and their names, without those too near to another."""
    blocks = [block_of(name) for name in names]
    every = [i for i, block in enumerate(blocks) if i == 0 or block != blocks[i - 1]]
    ticks = list[int]()
    for i in sorted(every, key=lambda i: (-blocks.count(blocks[i]), i)):
        if all(abs(i - other) * TICKS >= len(names) for other in ticks):
            ticks.append(i)
    return {i: blocks[i] for i in sorted(ticks)}


def escape_math(text: str) -> str:
    """Escape text that matplotlib would parse as a formula."""
    return text.replace("$", r"\$")
