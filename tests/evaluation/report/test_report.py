"""The report: what is read back is the same, and its text has the figures."""

import json
from pathlib import Path
from typing import Any

import pytest

from qtool.core.errors import FileError
from qtool.evaluation.report.report import SCHEMA, Report
from tests.evaluation.report.page.made_up import made_up


@pytest.mark.parametrize("models", [2, 5])
def test_round_trip(models):
    report = made_up(models=models)
    assert Report.from_json(json.loads(report.text())) == report


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"schema": SCHEMA + 1}, rf"schema {SCHEMA + 1}.*create the report again"),
        ({"models": 3}, "the report is damaged"),
        ({"models": [{}]}, "the report is damaged"),
        ({"accuracy": None}, "the report is damaged"),
    ],
)
def test_foreign_json_is_refused(damage, says):
    with pytest.raises(FileError, match=says):
        Report.from_json(made_up().to_json() | damage)


def _shortened(value: dict[str, Any], *place: Any) -> None:
    for key in place[:-1]:
        value = value[key]
    del value[place[-1]][-1]


PER_MODEL = [
    ("models",),
    ("accuracy", "models"),
    *(("accuracy", "metrics", 0, name) for name in ("values", "drops", "intervals")),
    *(("latency", 1, name) for name in ("models", "ratios")),
    *(("profile", "nodes", 2, name) for name in ("kernels", "microseconds")),
]


@pytest.mark.parametrize("place", PER_MODEL, ids=lambda p: ".".join(map(str, p)))
def test_a_list_without_an_entry_for_each_model_is_damage(place: tuple[Any, ...]) -> None:
    value = json.loads(made_up(models=3).text())
    _shortened(value, *place)
    with pytest.raises(FileError, match="an entry for each of"):
        Report.from_json(value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda v: v["models"][1].update(verdict=None), "have a verdict"),
        (lambda v: v["accuracy"].update(scores="x"), "scores 'x'"),
        (lambda v: v.update(models=[]), "an entry for each of 0 models"),
        (lambda v: v.update(title="\ud800"), "surrogates not allowed"),
        (
            lambda v: v["accuracy"]["models"][1]["worst"][0].update(thumbnail="https://a.b/c.png"),
            "a thumbnail is the address",
        ),
        (lambda v: v["latency"][0]["ratios"][1].update(high=None), "a time is no number"),
        (lambda v: v["models"][1].update(name="a" * 300_000), "the name of a model has more than"),
    ],
    ids=["verdict", "scores", "models", "title", "thumbnail", "time", "name"],
)
def test_values_that_fit_no_others_are_damage(change: Any, problem: str) -> None:
    value = json.loads(made_up().text())
    change(value)
    with pytest.raises(FileError, match=f"the report is damaged .*{problem}"):
        Report.from_json(value)


def test_deep_json_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("[" * 100_000)
    with pytest.raises(FileError, match="not JSON"):
        Report.read(tmp_path / "report.json")
