"""Figures: drawn where there are numbers, in the colours of the page, with the numbers as text."""

import re
from dataclasses import replace

import pytest

from qtool.evaluation.report.page.figures import figures
from tests.evaluation.report.page.made_up import HOSTILE, made_up


@pytest.fixture(scope="module")
def drawn():
    return figures(made_up())


def test_every_figure_has_numbers(drawn):
    assert set(drawn) == {"speed", "nodes", "hurting", "depth"}


def test_none_is_drawn_of_what_was_not_measured():
    bare = replace(made_up(), latency=(), profile=None, layers=None)
    assert figures(bare) == {}


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
