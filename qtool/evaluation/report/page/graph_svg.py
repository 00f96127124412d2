"""Draw a network graph as SVG; its colours are those of the page's style sheet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from markupsafe import Markup, escape

from qtool.core.errors import QtoolError
from qtool.core.remedies import Package
from qtool.evaluation.report.page.network_graph import INPUT, Box, NetworkGraph, network_graph
from qtool.evaluation.report.page.short_names import short_name
from qtool.evaluation.report.report import Report

OPTIONS: Mapping[str, Any] = {
    "direction": "topbottom",
    "spacing": {
        "layer_gap": 20.0,
        "node_gap": 18.0,
        "dummy_gap": 12.0,
        "port_gap": 9.0,
        "port_stroke_clear": 6.0,
        "stub": 6.0,
    },
    "wrap": {"viewport_aspect": 1.3},  # a chain of layers continues in the next column
}
COLUMNS = 5
WIDTH = 1180.0  # of the page, on a screen of 1280 pixels


@dataclass(frozen=True)
class Layout:
    """Positions in pixels, from (0, 0) at the top left.

    Attributes:
        width, height: size of the whole drawing.
        centers: (x, y) per box.
        lines: (x, y) of the corners of each edge, from source to reader.
    """

    width: float
    height: float
    centers: tuple[tuple[float, float], ...]
    lines: tuple[tuple[tuple[float, float], ...], ...]


def layout_boxes(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Return the layout of boxes.

    Args:
        sizes: width and height of each box.
        edges: (source, reader), numbers of boxes.

    Raises:
        QtoolError: graphlay is not installed.
    """
    try:
        import graphlay
    except ImportError as error:
        install = Package("graphlay", "run `pip install {}`")
        raise QtoolError("graphlay is not installed", install) from error
    graph = graphlay.Graph()
    for width, height in sizes:
        graph.node(width=width, height=height)
    for source, reader in edges:
        graph.edge(source, reader)
    columns = COLUMNS
    drawing = _in_columns(graph, columns)
    while columns > 1 and drawing.bounds["max"]["x"] - drawing.bounds["min"]["x"] > WIDTH:
        columns -= 1
        drawing = _in_columns(graph, columns)
    left, top = (drawing.bounds["min"][axis] for axis in "xy")
    right, bottom = (drawing.bounds["max"][axis] for axis in "xy")

    def point(value: Mapping[str, float]) -> tuple[float, float]:
        return value["x"] - left, value["y"] - top

    return Layout(
        right - left,
        bottom - top,
        tuple(point(node["center"]) for node in drawing.nodes),
        tuple(tuple(map(point, edge["points"])) for edge in drawing.edges),
    )


def _in_columns(graph: Any, columns: int) -> Any:
    """Return the layout of a `graphlay.Graph` in at most this many columns."""
    import graphlay

    wrap = {"tuning": {"wrap": {"max_rows": columns}}}
    return graphlay.layout(graph, options={**OPTIONS, **wrap})


HEIGHT = 24.0
MIN_WIDTH, MAX_WIDTH = 104.0, 220.0
CHARACTER = 6.0  # width of one, in pixels
MARGIN = 5.0
MIN_SHARE = 0.05  # of the error: a smaller one has a plain border
STRIP = 4.0  # height of the strip that shows the kinds in a module


LEGEND = {
    "integer": "computed in integers",
    "pass": "moves values",
    "fused": "fused into the node before it",
    "weights": "integer weights, float arithmetic",
    "float": "float",
    "input": "input",
}
"""Class of a box -> what it means."""


@dataclass(frozen=True)
class ModuleView:
    """The drawing of one module; `id` is what its box in the overview links to."""

    id: str
    name: str
    contents: str
    drawing: Markup


@dataclass(frozen=True)
class NetworkView:
    """The drawings of a network.

    Attributes:
        problem: why there are none; "" if there are.
        cost: what the width of a box shows: "time" or "MACs".
        legend: (class, meaning) of the boxes that occur.
    """

    problem: str = ""
    cost: str = ""
    overview: str = ""
    modules: tuple[ModuleView, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()


def network_view(report: Report) -> NetworkView | None:
    """Return the drawings of the plan, or None for a report without one."""
    graph = network_graph(report)
    if graph is None:
        return None
    present = {kind for box in graph.boxes for kind in box.kinds}
    links = {box.name: box.link for box in graph.boxes}
    try:
        return NetworkView(
            "",
            graph.cost,
            draw_graph(graph),
            tuple(
                ModuleView(links[m.title], m.title, _contents(m), draw_graph(m))
                for m in graph.modules
            ),
            tuple((kind, text) for kind, text in LEGEND.items() if kind in present),
        )
    except QtoolError as error:
        return NetworkView(str(error))


def _contents(graph: NetworkGraph) -> str:
    """Return what a module has, as "42 nodes"; inputs count where there is nothing else."""
    nodes = sum(box.kinds[0] != INPUT for box in graph.boxes)
    return f"{nodes} nodes" if nodes else f"{len(graph.boxes)} inputs"


def draw_graph(graph: NetworkGraph) -> Markup:
    """Return the drawing: boxes are links with a tooltip, edges end in an arrow.

    Raises:
        QtoolError: the layout library is not installed.
    """
    most = max((box.cost for box in graph.boxes), default=0.0)
    numbers = {box.name: i for i, box in enumerate(graph.boxes)}
    edges = [(numbers[a], numbers[b]) for a, b in graph.edges if a in numbers]
    widths = [_width(box, most) for box in graph.boxes]
    layout = layout_boxes([(w, HEIGHT) for w in widths], edges)
    wide, tall = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    label = f"Graph of {graph.title or 'the network'}: {len(graph.boxes)} boxes"
    parts = []
    for line in layout.lines:
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        parts.append(f'<polyline class="edge" points="{corners}" marker-end="url(#arrow)"/>')
    for box, width, (x, y) in zip(graph.boxes, widths, layout.centers, strict=True):
        parts.append(_draw_box(box, graph.title, x - width / 2, y - HEIGHT / 2, width))
    head = (
        f'<svg class="network" viewBox="{-MARGIN:g} {-MARGIN:g} {wide:.0f} {tall:.0f}" '
        f'width="{wide:.0f}" height="{tall:.0f}" role="group" aria-label="{escape(label)}">'
    )
    return Markup("\n".join([head, *parts, "</svg>"]))  # noqa: S704  # names are escaped


def _width(box: Box, most: float) -> float:
    return MIN_WIDTH + (MAX_WIDTH - MIN_WIDTH) * sqrt(box.cost / most if most else 0.0)


def _draw_box(box: Box, module: str, left: float, top: float, width: float) -> str:
    kind = "module" if box.is_module else box.kinds[0]
    red = box.share >= MIN_SHARE
    border = f' style="stroke-width:{1 + 6 * sqrt(min(1.0, box.share)):.1f}"' if red else ""
    tooltip = escape("\n".join((box.name, *box.facts)))
    shape = (
        f'<g class="box {kind}{" sensitive" if red else ""}"><title>{tooltip}</title>'
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{HEIGHT:g}" rx="5"'
        f"{border}/>{_strip(box, left, top, width)}"
        f'<text x="{left + width / 2:.1f}" y="{top + 15.5:.1f}">'
        f"{escape(_label(box, module, width))}</text></g>"
    )
    return f'<a href="#{box.link}">{shape}</a>' if box.link else shape


def _strip(box: Box, left: float, top: float, width: float) -> str:
    """Return the shares of the kinds in a module, along the bottom of its box."""
    if not box.is_module:
        return ""
    parts, x = [], left + 4
    for kind, number in Counter(box.kinds).items():
        part = (width - 8) * number / len(box.kinds)
        parts.append(
            f'<rect class="strip {kind}" x="{x:.1f}" y="{top + HEIGHT - STRIP - 1.5:.1f}" '
            f'width="{part:.1f}" height="{STRIP:g}"/>'
        )
        x += part
    return "".join(parts)


def _label(box: Box, module: str, width: float) -> str:
    """Return the end of the name, where names of layers differ."""
    name = box.name.removeprefix(f"{module}.") if box.kinds[0] != INPUT else box.name
    room = int((width - 8) / CHARACTER)
    return short_name(name, room)
