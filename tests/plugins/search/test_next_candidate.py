"""Where the search looks next, and what it delivers."""

from dataclasses import replace

import numpy as np

from qtool.plugins.search.archive import Trial
from qtool.plugins.search.cost_model import CostModel
from qtool.plugins.search.goals import TuneGoals
from qtool.plugins.search.judge import Score
from qtool.plugins.search.pareto_front import Candidates, Observation, next_candidate, quantize_more
from tests.plugins.search.measured import top_1
from tests.plugins.search.test_pareto_front import model  # noqa: F401  # a fixture

COUNT = 64
KNOWN = Candidates(
    np.array([[int(b) for b in f"{i:06b}"] for i in range(COUNT)]),
    np.geomspace(1, 1e-6, COUNT),
    np.linspace(100, 200, COUNT),
    np.linspace(1000, 2000, COUNT),
    True,
)


def seen_at(number: int, noise: float | None = None) -> Observation:
    """A file that is as it was predicted, and loses a tenth of the root of its noise."""
    real = float(KNOWN.noise[number]) if noise is None else noise
    drop = 0.1 * real**0.5
    score = Score(100, -10 * np.log10(real), real, top_1(drop, 0, drop))
    time = float(KNOWN.time[number])
    speed = 300 / time
    facts = (speed, speed, speed, int(KNOWN.size[number]), 0.5, 1.0, 0.0, 0.0)
    found = Trial(str(number), 1, "fast", (), score, *facts)
    return Observation(KNOWN.config(number), found, time)


def _searched(goals: TuneGoals) -> list[int]:
    seen: list[Observation] = []
    numbers: list[int] = []
    while (number := next_candidate(KNOWN, seen, goals)) is not None:
        numbers.append(number)
        seen.append(seen_at(number))
    best = goals.best([s.trial for s in seen])
    return [*numbers, int(best.key)]


def test_a_drop_is_found_by_bisection() -> None:
    goals = TuneGoals(max_drop=0.001)  # noise 1e-4: number 42
    *tried, best = _searched(goals)
    assert best in (42, 43)  # nearer to each other than what is worth an evaluation
    assert len(tried) <= 10


def test_the_cheapest_is_enough_where_it_keeps_the_goal() -> None:
    assert _searched(TuneGoals(max_drop=0.99)) == [0, 0]


def test_what_is_in_float_for_nothing_is_put_back(model: CostModel) -> None:  # noqa: F811  # as above
    groups = model.items.space.groups
    costly = 1  # for its weights, which nobody else needs
    names = [name for name, _ in model.items.points]
    heavy = [name.startswith(groups[costly].name) and "weight" in name for name in names]
    model = replace(model, errors=np.where(heavy, 1.0, 1e-6))
    assert sum(heavy)
    lifted = (*(len(g.choices) - 1 for g in groups[:-1]), 0)

    def seen(config: tuple[int, ...], drop: float) -> Observation:
        (noise,), _, _ = model.predict(np.array([config]))
        found = seen_at(1, float(noise)).trial
        return Observation(
            config, replace(found, score=replace(found.score, metric=top_1(drop, drop, drop))), 1.0
        )

    goals, whole = TuneGoals(max_drop=0.01), seen((0,) * len(groups), 0.5)
    config = quantize_more(model, [whole, seen(lifted, 0.0)], goals)
    assert config is not None
    assert [i for i, choice in enumerate(config) if choice] == [costly]
    assert quantize_more(model, [whole, seen(config, 0.0)], goals) is None
    assert quantize_more(model, [whole], goals) is None
