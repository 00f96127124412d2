"""A search as a person calls it: goals kept or not, ended early, gone on with, refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import qtool
from qtool.core import graph as G
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.planning import planner
from qtool.planning.node_decisions import NodeDecisions
from qtool.planning.speed.slow_layers import REASON
from qtool.plugins.search import candidate_files
from qtool.plugins.search.search import Search
from qtool.plugins.search.tuning import calibrate_plans
from tests.evaluation.latency.test_decoding import Cached, arrays
from tests.plugins.search.nets import captured_ladder, ladder

NET, SEEN, ASKED = ladder()


def _tuned(goals: qtool.TuneGoals, **options: Any) -> qtool.TunedModel:
    return qtool.tune(
        captured_ladder(),
        SEEN,
        ASKED,
        goals=goals,
        options=qtool.SearchOptions(**{"evaluations": 4, "timing": 0.01, **options}),
        accuracy=("fast",),
    )


def _equal_times(_float: Path, files: Sequence[Path], *_: Any) -> tuple[Ratio, ...]:
    return tuple(Ratio(1.0, 1.0, 1.0, 1.0, 1.0) for _file in files)


def test_a_goal_that_is_kept_and_the_recipe_that_keeps_it(tmp_path: Path) -> None:
    goals = qtool.TuneGoals(min_sqnr=45.0)
    found = _tuned(goals)
    assert found.reached
    assert found.best.score.sqnr_db is not None
    assert found.best.score.sqnr_db >= 45
    (tmp_path / "best.toml").write_text(found.recipe_text())
    again = qtool.quantize(captured_ladder(), SEEN, recipe=tmp_path / "best.toml")
    assert again.plan.digest == found.quantized().plan.digest
    assert "all goals met" in str(found)
    assert found.to_json()["best"]["key"] == found.best.key


def test_a_decoder_has_a_step_and_a_prompt() -> None:
    batch = tuple(map(torch.from_numpy, arrays()))
    dynamic = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "total"},
        "past_key_values": {0: "batch", 2: "past"},
    }
    found = qtool.tune(
        Cached().eval(),
        [batch],
        [batch],
        goals=qtool.TuneGoals(min_sqnr=-100.0),
        options=qtool.SearchOptions(choices=("int8-weights",), timing=0.0),
        accuracy=("fast",),
        dynamic=dynamic,
    )
    rows = dict(found.summary().rows)
    assert "speed" not in rows
    assert "95 % interval" in rows["step"]
    assert "of 5 tokens, batch 1, 1 thread" in rows["prompt"]
    assert [timing.phase for timing in found.place.timings] == ["prompt"]


def test_times_are_relative_to_the_file_that_the_model_was_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = captured_ladder().export_float(tmp_path / "mine.onnx")
    references: set[Path] = set()
    speeds = candidate_files.measure_speedups

    def timed(reference: Path, *args: Any) -> Any:
        references.add(reference)
        return speeds(reference, *args)

    monkeypatch.setattr(candidate_files, "measure_speedups", timed)
    found = qtool.tune(
        qtool.load_onnx(path),
        SEEN,
        ASKED,
        goals=qtool.TuneGoals(min_sqnr=10.0),
        options=qtool.SearchOptions(evaluations=1, timing=0.01, choices=("static",)),
        accuracy=("fast",),
    )
    assert references == {path}
    assert found.place.float_size == path.stat().st_size
    assert found.best.score.sqnr_db is not None


def test_a_search_that_was_ended_has_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    # measured times would decide whether a mostly-float file is of use
    monkeypatch.setattr(candidate_files, "measure_speedups", _equal_times)
    goals = qtool.TuneGoals(min_sqnr=50.0, smallest=True)
    evaluated, calls = Search._evaluate, []

    def twice(self: Search, *args: Any, **more: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluated(self, *args, **more)

    monkeypatch.setattr(Search, "_evaluate", twice)
    ended = _tuned(goals)
    assert ended.run.stopped == "interrupted"
    assert ended.evaluated == (ended.best,)


def test_the_calibration_has_the_ranges_of_quantize(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(state: NodeDecisions) -> dict[fx.Node, str]:
        return {n: REASON for n in state.integer if G.name_of(n) == "0"}

    monkeypatch.setattr(planner, "slow_layers", first)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3)
    captured = qtool.capture_model(nn.Sequential(*layers).eval(), SEEN[0])
    choices = calibrate_plans(captured, SEEN, [captured.plan()])
    assert "2" in {p.name for p in captured.plan()}
    assert qtool.calibrate(captured, SEEN).statistics.keys() < choices.statistics.keys()
