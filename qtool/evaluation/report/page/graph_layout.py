"""Layered (Sugiyama) layout of a graph, by graphlay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qtool.core.errors import QtoolError
from qtool.core.remedies import Package

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
