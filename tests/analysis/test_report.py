"""The JSON: every field is documented, and what is read back is the same report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qtool.analysis.report import SCHEMA, Report
from tests.page.made_up import made_up

DOCS = Path(__file__).parents[2] / "docs" / "report.md"
FREE = {"versions"}  # its keys are names of packages


def fields(value, name=""):
    """Every field name of a JSON value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if name not in FREE:
                yield key
            yield from fields(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner, name)


def test_every_field_is_documented():
    text = DOCS.read_text(encoding="utf-8")
    section = text[text.index("## report.json") : text.index("## How the pages are made")]
    known = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", section))))
    missing = set(fields(made_up().to_json())) - known
    assert not missing
    assert f"`schema` is {SCHEMA};" in section


def test_an_undocumented_field_would_be_noticed():
    assert "surprise" in set(fields({"a": [{"surprise": 1}]}))


@pytest.mark.parametrize("models", [2, 5])
def test_round_trip(models):
    report = made_up(models=models)
    assert Report.from_json(json.loads(report.text())) == report
