"""The loop of a search, with toy speeds and a toy judge: what it evaluates, and when it stops."""

import time
from collections.abc import Sequence
from math import log10
from pathlib import Path
from typing import Any

import onnx
import pytest
from torch import fx

import qtool
from qtool.core import graph as G
from qtool.core.data import to_batch
from qtool.core.errors import PlanError
from qtool.core.search_options import SearchOptions
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.planning import planner
from qtool.planning.node_decisions import NodeDecisions
from qtool.planning.plan import QuantPlan
from qtool.planning.recipe import Recipe
from qtool.planning.speed import slow_layers
from qtool.plugins.search import candidate_files, search
from qtool.plugins.search.candidate_files import CandidateFiles
from qtool.plugins.search.choices import layers_of
from qtool.plugins.search.goals import TuneGoals
from qtool.plugins.search.judge import Score
from qtool.plugins.search.search import Search, Subject
from qtool.plugins.search.tuned_model import SearchPlace, TunedModel
from tests.plugins.search.nets import captured_ladder, ladder

_, CALIBRATION, _ = ladder()
TARGET = "onnxruntime-x86-vnni"


def _roundings(file: Path) -> int:
    return sum(n.op_type == "QuantizeLinear" for n in onnx.load(file).graph.node)


class ToyJudge:
    """Every QuantizeLinear node adds the same noise."""

    def score(self, file: Path) -> Score:
        noise = 1e-5 * _roundings(file)
        return Score(10, -10 * log10(noise) if noise else None, noise)


@pytest.fixture(autouse=True)
def no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every QuantizeLinear node makes a file faster by a tenth of float."""

    def speedups(_: Path, files: Sequence[Path], *__: Any) -> tuple[Ratio, ...]:
        speeds = [1 + 0.1 * _roundings(file) for file in files]
        return tuple(Ratio(s, s, s, s, s) for s in speeds)

    monkeypatch.setattr(candidate_files, "measure_speedups", speedups)


@pytest.fixture(scope="module")
def calibration() -> qtool.Calibration:
    return qtool.calibrate(captured_ladder(), CALIBRATION, target=TARGET, accuracy="fast")


class Toy:
    """A search of the ladder network, and what it called."""

    def __init__(
        self,
        folder: Path,
        calibration: qtool.Calibration,
        goals: TuneGoals,
        recipes: Sequence[Recipe] = (Recipe(accuracy="fast"),),
        **options: Any,
    ) -> None:
        self.folder, self.calibration = folder, calibration
        self.float_file = captured_ladder().export_float(folder / "float.onnx", TARGET)
        graph, _ = captured_ladder().for_target(TARGET)
        self.refused: set[str] = set()
        files = CandidateFiles(folder, self.float_file, [], 0.0, self.convert)
        whole = captured_ladder().plan(TARGET, recipe=recipes[-1])
        samples = [graph.bind(to_batch(CALIBRATION[0][:8]))]
        self.search = Search(
            files,
            ToyJudge(),  # type: ignore[arg-type]  # a toy
            goals,
            SearchOptions(**{"choices": ("static",), "timing": 0.0, **options}),
            Subject(recipes, layers_of(whole), self.plan, samples),
        )

    def plan(self, recipe: Recipe) -> QuantPlan:
        return captured_ladder().plan(TARGET, recipe=recipe)

    def convert(self, recipe: Recipe) -> Any:
        if recipe.accuracy in self.refused:
            raise PlanError(f"no plan for {recipe.accuracy}")
        return qtool.convert(
            captured_ladder(),
            self.calibration,
            target=TARGET,
            recipe=recipe,
            sample=to_batch(CALIBRATION[0]),
        )

    def run(self) -> TunedModel:
        return self.search.run(time.monotonic(), SearchPlace(TARGET, 1))


@pytest.fixture
def toy(tmp_path: Path, calibration: qtool.Calibration) -> Any:
    return lambda goals, *args, **options: Toy(tmp_path, calibration, goals, *args, **options)


def test_a_loose_goal_needs_one_evaluation(toy: Any) -> None:
    result = toy(TuneGoals(min_sqnr=-100.0)).run()
    assert result.reached
    assert result.run.stopped == ""
    assert len(result.evaluated) == 1
    assert set(result.best.choices) == {"static"}


def test_the_first_candidate_is_the_file_of_quantize(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second(state: NodeDecisions) -> dict[fx.Node, str]:
        return {n: slow_layers.REASON for n in state.integer if G.name_of(n) == "second"}

    monkeypatch.setattr(planner, "slow_layers", second)
    one = toy(TuneGoals(min_sqnr=-100.0), choices=("static", "int8-weights"))
    first, whole, *_ = one.run().evaluated
    assert first.choices == ("static", "int8-weights", "static", "static")
    assert set(whole.choices) == {"static"}
    one.convert(Recipe(accuracy="fast")).export(tmp_path / "default.onnx")
    tried = (one.folder / f"{first.key}.onnx").read_bytes()
    assert tried == (tmp_path / "default.onnx").read_bytes()


def test_candidates_leave_more_in_float_until_the_goal_is_met(toy: Any) -> None:
    whole = toy(TuneGoals(min_sqnr=-100.0)).run().best
    goal = whole.score.sqnr_db + 1.0
    result = toy(TuneGoals(min_sqnr=goal), evaluations=12).run()
    assert result.reached
    assert 0 < result.best.choices.count("float") < len(result.best.choices)
    assert len({t.key for t in result.evaluated}) == len(result.evaluated)


def test_the_number_of_evaluations_is_a_limit_and_float_is_no_result(toy: Any) -> None:
    result = toy(TuneGoals(min_sqnr=1000.0), evaluations=2).run()
    assert not result.reached
    assert len(result.evaluated) == 2
    assert set(result.best.choices) != {"float"}
    assert "goal is 1000 dB" in result.missed[0]


def test_without_budget_left_only_the_first_level_is_evaluated(toy: Any) -> None:
    levels = [Recipe(accuracy="fast"), Recipe(accuracy="balanced")]
    result = toy(TuneGoals(min_sqnr=1000.0), levels, budget=0.0).run()
    assert [t.accuracy for t in result.evaluated] == ["fast"]
    assert result.run.stopped == "the time budget is used up"


def test_a_level_that_cannot_be_converted_is_skipped_unless_it_is_the_first(toy: Any) -> None:
    levels = [Recipe(accuracy="fast"), Recipe(accuracy="balanced")]
    search = toy(TuneGoals(min_sqnr=-100.0), levels)
    search.refused = {"balanced"}
    assert search.run().run.notes == ("skipped balanced: no plan for balanced",)
    search = toy(TuneGoals(min_sqnr=-100.0), levels)
    search.refused = {"fast"}
    with pytest.raises(PlanError, match="no plan for fast"):
        search.run()


def test_a_candidate_that_cannot_be_converted_is_passed_over(
    toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, recipes = Search._evaluate, []

    def refuse(self: Search, recipe: Recipe, *args: Any) -> Any:
        recipes.append(recipe)
        if len(recipes) == 2:
            raise PlanError("no plan")
        return evaluate(self, recipe, *args)

    monkeypatch.setattr(Search, "_evaluate", refuse)
    assert len(toy(TuneGoals(min_sqnr=45.0)).run().evaluated) > 1
    assert recipes.count(recipes[1]) == 1


def test_where_all_layers_meet_the_goal_cheaper_weights_are_tried(toy: Any) -> None:
    goals, choices = TuneGoals(min_sqnr=-100.0, smallest=True), ("static", "int8-weights")
    result = toy(goals, choices=choices).run()
    assert result.reached
    assert len(result.evaluated) <= 2


def test_an_interruption_ends_the_search_and_another_signal_the_command(
    toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminated(KeyboardInterrupt):
        pass

    def interrupted(*_: Any) -> Any:
        raise signal

    signal: KeyboardInterrupt = KeyboardInterrupt()
    monkeypatch.setattr(search, "ranked", interrupted)
    result = toy(TuneGoals(min_sqnr=1000.0)).run()
    assert result.run.stopped == "interrupted"
    assert len(result.evaluated) == 1
    signal = Terminated()
    with pytest.raises(Terminated):
        toy(TuneGoals(min_sqnr=1000.0)).run()
