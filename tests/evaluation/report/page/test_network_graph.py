"""The graph of the network: boxes of the plan, modules of a large network, the drawing."""

import re
import sys
from dataclasses import replace

import pytest

from qtool.evaluation.report.page.graph_svg import WIDTH, layout_boxes, network_view
from qtool.evaluation.report.page.network_graph import (
    MAX_MODULE,
    anchors,
    group_by_module,
    network_graph,
)
from qtool.evaluation.report.page.render import render_pages
from tests.evaluation.report.page.made_up import HOSTILE, made_up

ELSEWHERE = "the layout library is not installed"


def test_boxes_are_the_nodes_of_the_plan():
    report = made_up(12)
    graph = network_graph(report)
    assert [b.name for b in graph.boxes] == ["x", *(row.node for row in report.plan)]
    assert [b.kinds for b in graph.boxes[1:5]] == [
        ("integer",),
        ("fused",),
        ("weights",),
        ("float",),
    ]
    assert graph.cost == "time"
    doubtful = replace(report, profile=replace(report.profile, differs="the sums differ"))
    assert network_graph(doubtful).cost == "MACs"
    layer = report.layers.layers[5]
    box = graph.boxes[6]
    assert box.share == layer.only_share
    assert box.link == "layer-5"
    assert box.cost == report.profile.nodes[5].microseconds[-1]
    assert any(f"own SQNR {layer.alone_db:.1f} dB" in fact for fact in box.facts)
    assert "float on purpose" in graph.boxes[4].facts
    assert set(graph.edges) == {(s, row.node) for row in report.plan for s in row.inputs}


def test_shapes_are_no_boxes():
    report = made_up(12)
    first = replace(report.plan[0], form="shape")
    graph = network_graph(replace(report, plan=(first, *report.plan[1:])))
    assert first.node not in [b.name for b in graph.boxes[1:]]


def test_modules():
    names = [
        "stem",
        *(f"body.{i}.{leaf}" for i in range(30) for leaf in ("conv", "norm.add", "relu")),
    ]
    module = group_by_module(names)
    assert module["stem"] == "stem"
    assert module["body.7.conv"] == module["body.7.norm.add"] == "body.7"
    small = [n for n in names if n.startswith(("stem", "body.1."))]
    assert len(small) <= MAX_MODULE
    assert set(group_by_module(small).values()) == {"stem", "body"}


def test_a_large_network_shows_modules():
    report = made_up(500)
    graph = network_graph(report)
    assert len(graph.boxes) < 60
    modules = [b for b in graph.boxes if b.is_module]
    assert len(modules) == len(graph.modules) == 50
    assert sum(len(b.kinds) for b in modules) + len(graph.boxes) - len(modules) - 1 == 500
    for module, inner in zip(modules, graph.modules, strict=True):
        own = [b for b in inner.boxes if b.kinds != ("input",)]
        assert module.share == pytest.approx(sum(b.share for b in own))
        assert module.name == inner.title
    page = render_pages(report)["report.html"].decode()
    for link in re.findall(r'href="#(module-\d+)"', page):
        assert f'id="{link}"' in page


def test_a_module_of_inputs_counts_inputs():
    report = made_up(500)
    first, *rows = report.plan
    states = tuple(f"past.{i}.key" for i in range(40))
    view = network_view(replace(report, plan=(replace(first, inputs=states), *rows)))
    contents = {module.name: module.contents for module in view.modules}
    assert contents["past"] == "40 inputs"
    assert "10 nodes" in contents.values()


def test_every_box_leads_to_an_element():
    report = made_up(12)
    page = render_pages(report)["report.html"].decode()
    links = set(re.findall(r'href="#((?:layer|plan|node)-\d+)"', page))
    assert set(anchors(report).values()) <= links
    assert all(f'id="{link}"' in page for link in links)


def test_drawing():
    pytest.importorskip("graphlay", reason=ELSEWHERE)
    view = network_view(made_up(12))
    assert view.overview.count('class="box') == 13
    assert view.overview.count("<polyline") == len(network_graph(made_up(12)).edges)
    assert "</script>" not in view.overview
    assert f"<title>{HOSTILE[0]}" not in view.overview
    assert [kind for kind, _ in view.legend] == [
        "integer",
        "pass",
        "fused",
        "weights",
        "float",
        "input",
    ]
    assert network_view(made_up(12)) == view, "the same report gives the same drawing"


def test_layout_is_layered():
    pytest.importorskip("graphlay", reason=ELSEWHERE)
    layout = layout_boxes([(100.0, 20.0)] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    (_, y0), (x1, y1), (x2, y2), (_, y3) = layout.centers
    assert y0 < y1 == y2 < y3
    assert abs(x1 - x2) >= 100, "boxes do not overlap"
    for line, (source, reader) in zip(layout.lines, [(0, 1), (0, 2), (1, 3), (2, 3)], strict=True):
        assert abs(line[0][1] - layout.centers[source][1]) == pytest.approx(10)
        assert abs(line[-1][1] - layout.centers[reader][1]) == pytest.approx(10)
    xs = [x for line in layout.lines for x, _ in line]
    assert min(xs) >= 0
    assert max(xs) <= layout.width


def test_a_long_network_continues_in_columns_that_fit():
    pytest.importorskip("graphlay", reason=ELSEWHERE)
    edges = [(i, i + 1) for i in range(119)] + [(i, i + 4) for i in range(0, 112, 4)]
    layout = layout_boxes([(200.0, 24.0)] * 120, edges)
    assert layout.width <= WIDTH
    assert layout.height < 120 * 24


def test_the_page_says_that_the_library_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "graphlay", None)
    page = render_pages(made_up(12))["report.html"].decode()
    assert "Not drawn: graphlay is not installed; run `pip install graphlay`" in page
    assert 'svg class="network"' not in page
