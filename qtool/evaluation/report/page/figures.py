"""Overview figures as SVG in the colours of the page: light, dark or print.

matplotlib draws with placeholder colours, which are replaced by variables of the style sheet. Text
stays text. Histograms of single layers are drawn by report.js from the JSON when a layer is
selected: hundreds of finished drawings would be most of the file.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qtool.evaluation.measure.sensitivity import LayerError
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
WIDTH = 7.2  # inches: 518 units of the drawing
BARS = 15
MAX_NAME = 34  # characters of a name next to a bar


def figures(report: Report) -> dict[str, str]:
    """Return the SVG of every figure that the report has data for, by name."""
    drawings = {name: draw(report) for name, draw in FIGURES.items()}
    return {name: svg for name, svg in drawings.items() if svg}


def _speed(report: Report) -> str:
    """Speed-up of each model at each batch size, with its interval and a line at 1."""
    rows = [
        (f"{m.name}\nbatch {t.batch}, {t.threads} thr.", t.ratios[i], SERIES[i % len(SERIES)])
        for t in report.latency
        for i, m in enumerate(report.models)
        if i
    ]
    if not rows:
        return ""

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
        widest = max(1.0, *(r.high for _, r, _ in rows))
        shown = max(widest, *(min(r.p90, 1.6 * widest) for _, r, _ in rows))
        axes.set_xlim(0, 1.12 * shown)  # a line of outliers may leave the drawing
        axes.set_xlabel("speed-up over the reference (thick: 95 % interval, thin: 80 % of runs)")
        axes.grid(axis="y", visible=False)

    return draw_svg("Speed-up over the reference", 0.9 + 0.45 * len(rows), draw)


def _nodes(report: Report) -> str:
    """Slowest nodes of the reference and the last model."""
    if report.profile is None:
        return ""
    last = len(report.models) - 1
    nodes = sorted(report.profile.nodes, key=lambda n: -max(n.microseconds))[:BARS]

    def draw(axes: Axes) -> None:
        for i in (0, last):
            offset = -0.2 if i == 0 else 0.2
            rows = [y + offset for y in range(len(nodes))]
            spent = [n.microseconds[i] / 1000 for n in nodes]
            axes.barh(rows, spent, height=0.38, color=SERIES[i % len(SERIES)])
            label = f"{report.models[i].name}" if spent[0] > 0 else ""
            axes.text(
                spent[0], rows[0], f" {escape_math(label)}", va="center", color=INK, fontsize=8
            )
        axes.set_yticks(range(len(nodes)), [_short(n.name) for n in nodes])
        axes.set_ylim(len(nodes) - 0.4, -0.6)
        axes.set_xlim(0, 1.2 * max(max(n.microseconds) for n in nodes) / 1000)
        axes.set_xlabel(f"ms per run, batch {report.profile.batch if report.profile else 0}")
        axes.grid(axis="y", visible=False)

    return draw_svg("Slowest nodes", 0.8 + 0.3 * len(nodes), draw) if nodes else ""


def _worst_layers(report: Report) -> str:
    """Layers with the largest share of the output error."""
    if report.layers is None:
        return ""
    worst = sorted(report.layers.layers, key=lambda e: -e.only_share)[:BARS]

    def draw(axes: Axes) -> None:
        shares = [100 * e.only_share for e in worst]
        axes.barh(range(len(worst)), shares, height=0.6, color=SERIES[1])
        for y, share in enumerate(shares):
            axes.text(share, y, f" {share:.1f} %", va="center", fontsize=8)
        axes.set_yticks(range(len(worst)), [_short(e.name) for e in worst])
        axes.set_ylim(len(worst) - 0.4, -0.6)
        axes.set_xlim(0, 1.15 * max(shares[0], 1e-9))
        axes.set_xlabel("output error with only this layer quantized, in % of the total error")
        axes.grid(axis="y", visible=False)

    return draw_svg("Most sensitive layers", 0.8 + 0.25 * len(worst), draw) if worst else ""


def _error_along_network(report: Report) -> str:
    """SQNR along the network: of each layer alone, and accumulated."""
    if report.layers is None or not report.layers.layers:
        return ""
    layers = report.layers.layers
    views: tuple[tuple[str, str, Callable[[LayerError], float | None]], ...] = (
        ("of the layer itself", SERIES[0], lambda e: e.alone_db),
        ("accumulated", SERIES[1], lambda e: e.accumulated_db),
    )

    def draw(axes: Axes) -> None:
        for label, color, value in views:
            points = [(i, v) for i, e in enumerate(layers) if (v := value(e)) is not None]
            if points:
                xs, ys = zip(*points, strict=True)
                axes.plot(xs, ys, color=color, linewidth=1.4, marker="o", markersize=2.5)
                above = color == SERIES[0]
                where = (xs[len(xs) // 2], max(ys) if above else min(ys))
                axes.annotate(
                    label,
                    where,
                    color=color,
                    ha="center",
                    va="bottom" if above else "top",
                    xytext=(0, 6 if above else -6),
                    textcoords="offset points",
                    fontweight="bold",
                )
        axes.margins(y=0.18)
        axes.set_ylabel("SQNR in dB (higher is better)")
        axes.set_xlabel("layers, from the input to the output")

    return draw_svg("Error along the network", 2.9, draw)


FIGURES: dict[str, Callable[[Report], str]] = {
    "speed": _speed,
    "nodes": _nodes,
    "hurting": _worst_layers,
    "depth": _error_along_network,
}


def draw_svg(title: str, height: float, draw: Callable[[Axes], None]) -> str:
    """Return one drawing, `height` inches high, as SVG in the colours of the page."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.tick_params(length=0)
        buffer = io.StringIO()
        plain: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=plain)
    text = buffer.getvalue()
    return _inline(text[text.index("<svg") :], title)


def _inline(svg: str, title: str) -> str:
    """Return the drawing for embedding: without a size, with colour variables and unique ids."""
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, variable)
    head, _, rest = svg.partition(">")
    box = head[head.index("viewBox") :].split('"')[1]
    prefix = "".join(title.split()).lower()
    for mark in ('id="', 'href="#', "url(#"):  # one page holds several drawings
        rest = rest.replace(mark, f"{mark}{prefix}-")
    attributes = f'viewBox="{box}" role="img" aria-label="{title}" class="figure"'
    links = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f"<svg {attributes} {links}>{rest}"


def _short(name: str) -> str:
    """Return the end of a long name, where names of layers differ."""
    return escape_math(name if len(name) <= MAX_NAME else "…" + name[1 - MAX_NAME :])


def escape_math(text: str) -> str:
    """Escape text that matplotlib would parse as a formula."""
    return text.replace("$", r"\$")
