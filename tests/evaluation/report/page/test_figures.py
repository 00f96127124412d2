"""Figures: drawn where there are numbers, in the colours of the page, with the numbers as text."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html import unescape

import pytest

from qtool.evaluation.report.page.figures import VARIABLES, figures
from tests.evaluation.report.page.made_up import HOSTILE, made_up


@pytest.fixture(scope="module")
def drawn():
    return figures(made_up())


def test_every_figure_has_numbers(drawn):
    assert set(drawn) == {"speed", "nodes", "hurting", "depth"}


def test_none_is_drawn_of_what_was_not_measured():
    bare = replace(made_up(), latency=(), profile=None, layers=None)
    assert figures(bare) == {}


def test_colours_are_those_of_the_page(drawn):
    for svg in (figure.drawing for figure in drawn.values()):
        assert not re.search("|".join(VARIABLES), svg), "a stand-in colour was left"
        assert "var(--muted)" in svg
        assert svg.startswith("<svg viewBox=")
        assert 'href="http' not in svg


def test_numbers_are_text(drawn):
    report = made_up()
    assert f"{report.latency[0].ratios[1].median:.2f}x" in drawn["speed"].drawing
    share = max(e.only_share for e in report.layers.layers)
    assert f"{100 * share:.1f} %" in drawn["hurting"].drawing


def test_one_outlier_does_not_rule_the_axis():
    report = made_up()
    first, *others = report.profile.nodes
    slow = replace(first, microseconds=(203.0, 26504.0))
    profile = replace(report.profile, nodes=(slow, *others))
    drawing = figures(replace(report, profile=profile))["nodes"].drawing
    assert f"{report.models[-1].name}: 26.5 ms" in drawing
    assert len(re.findall(r">\d\d\.\d<", drawing)) == 0, "a tick of the axis at 10 ms or more"


def test_names_cannot_break_the_page():
    report = made_up()
    layers = report.layers.layers
    hostile = tuple(replace(e, name=HOSTILE) for e in layers)
    svg = figures(replace(report, layers=replace(report.layers, layers=hostile)))["hurting"]
    assert "</script>" not in svg.drawing


def test_bars_and_points_lead_to_rows(drawn):
    """Each has a tooltip with its name, so that the chart can be read without the table."""
    layers = made_up().layers.layers
    for name, most in (("hurting", 1), ("depth", 2)):
        links = re.findall(r'<a href="#layer-(\d+)" aria-label="([^"]*)"', drawn[name].drawing)
        assert len(links) > 10
        assert max(Counter(number for number, _ in links).values()) <= most
        for number, tooltip in links:
            assert unescape(tooltip).startswith(f"{layers[int(number)].name}: own ")
    assert "target:" not in "".join(figure.drawing for figure in drawn.values())


def test_the_same_report_gives_the_same_drawings(drawn):
    assert figures(made_up()) == drawn
