"""The cost model, measured speedups, and choices between recipes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.metrics.ranks import correlation
from qtool.plugins.search import candidate_files
from qtool.plugins.search.candidate_files import MAX_SESSIONS, MIN_SESSIONS, repeat_sessions
from qtool.plugins.search.choices import FLOAT, observers_of, search_space
from qtool.plugins.search.cost_model import (
    CostModel,
    extra_points,
    find_items,
    fit_scales,
)
from qtool.plugins.search.tuning import _recipes
from tests.plugins.search.test_pareto_front import model  # noqa: F401  # a fixture


def test_factors_of_groups_are_found(model: CostModel) -> None:  # noqa: F811  # as above
    groups = len(model.items.space.groups)
    real = replace(model, error_scales=np.linspace(0.3, 3, groups), time_scale=1.5)
    configs = [tuple(int(b) for b in f"{i:0{groups}b}") for i in range(2**groups - 1)]
    noise, time, _ = real.predict(np.array(configs))
    found = fit_scales(model, configs, list(noise), list(time))
    before, after = (m.predict(np.array(configs)) for m in (model, found))
    assert np.abs(np.log(after[0] / noise)).max() < 0.2 * np.abs(np.log(before[0] / noise)).max()
    assert np.abs(after[1] - time).max() < 0.1 * np.abs(before[1] - time).max()


def test_agreement_needs_three_different_numbers() -> None:
    assert correlation(np.array([1.0, 2]), np.array([1.0, 2])) is None
    assert correlation(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])) is None
    assert correlation(np.array([1.0, 2, 3]), np.array([2.0, 4, 6])) == 1


def _told(monkeypatch: pytest.MonkeyPatch, medians: list[tuple[float, ...]]) -> list[float]:
    """Sessions that find these ratios, in turns; what each of them was given, in seconds."""
    seen: list[float] = []

    def timed(files: Any, inputs: Any, **options: Any) -> Any:
        found = medians[len(seen) % len(medians)]
        seen.append(options["seconds"])
        ratios = [Ratio(m, m - 0.1, m + 0.1, m - 0.2, m + 0.2) for m in (1.0, *found)]
        return SimpleNamespace(ratios=tuple(ratios))

    monkeypatch.setattr(candidate_files, "time_files", timed)
    return seen


def test_odd_sessions_do_not_widen_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _told(monkeypatch, [(2.0,)] * (MAX_SESSIONS - 2) + [(0.5,), (9.0,)])
    (one,) = candidate_files.measure_speedups(Path("float"), [Path("a")], (), 1000.0)
    assert (one.low, one.median, one.high) == (1.9, 2.0, 2.1)
    assert sum(seen) == pytest.approx(1000), "as long as one session of that time"


def test_as_many_sessions_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(candidate_files.time, "perf_counter", lambda: next(clock))
    assert len(repeat_sessions(lambda: None, 5)) == MIN_SESSIONS + 4


class Tied(nn.Module):
    """A table of words that is the head, too; it is small, so that alone it stays in float."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.layer = nn.Linear(32, 32)
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.relu(self.layer(self.table(ids))))
        return result


def test_a_small_table_is_quantized_only_with_its_head() -> None:
    captured = qtool.capture_model(Tied().eval(), torch.arange(8).reshape(2, 4))
    plan = captured.plan(mode="weight-only-int4")
    graph, _ = captured.for_target("onnxruntime")
    space = search_space(graph, plan, observers_of(plan), ("int4-weights", "int8-weights"))
    names = [group.name for group in space.groups]
    assert set(names) == {"table", "layer", "head"}
    in_float = space.config(FLOAT)

    def alone(name: str) -> tuple[int, ...]:
        at = names.index(name)
        return (*in_float[:at], 0, *in_float[at + 1 :])

    assert space.is_float(in_float)
    assert space.is_float(alone("table"))
    assert not space.is_float(alone("layer"))
    assert not space.is_float(space.default_config)
    assert find_items(space).points
    assert extra_points(space) == ()


@pytest.mark.parametrize(
    ("recipe", "choices", "mode"),
    [
        (None, ("static", "int4-weights"), "static"),
        (None, ("float", "int4-weights", "int8-weights"), "weight-only"),
        (None, ("static-16",), "static"),
        ({"mode": "dynamic"}, ("int4-weights",), "dynamic"),
    ],
)
def test_the_default_of_a_search_is_one_of_its_choices(
    recipe: dict[str, str] | None, choices: tuple[str, ...], mode: str
) -> None:
    how = qtool.QuantizeOptions(recipe=recipe)
    assert {r.mode for r in _recipes(how, ("fast", "balanced"), choices)} == {mode}


def test_ignored_layers_are_float_in_every_recipe() -> None:
    recipes = _recipes(qtool.QuantizeOptions(ignore=("head",)), ("fast", "balanced"), ("static",))
    assert [r.accuracy for r in recipes] == ["fast", "balanced"]
    assert all(r.rules == qtool.Recipe.of(None, ignore=["head"]).rules for r in recipes)
