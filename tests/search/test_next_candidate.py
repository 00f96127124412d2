"""Where the search looks next, and what it delivers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qtool.search.archive import Evaluated
from qtool.search.cost_model import Additive
from qtool.search.goals import TuneGoals
from qtool.search.judge import Score
from qtool.search.next_candidate import Seen, leaner, next_of
from qtool.search.pareto_front import Front
from tests.search.test_pareto_front import model  # noqa: F401  # a fixture

COUNT = 64
KNOWN = Front(
    np.array([[int(b) for b in f"{i:06b}"] for i in range(COUNT)]),
    np.geomspace(1, 1e-6, COUNT),
    np.linspace(100, 200, COUNT),
    np.linspace(1000, 2000, COUNT),
    True,
)


def seen_at(number: int, noise: float | None = None) -> Seen:
    """A file that is as it was predicted, and loses a tenth of the root of its noise."""
    real = float(KNOWN.noise[number]) if noise is None else noise
    drop = 0.1 * real**0.5
    score = Score(100, -10 * np.log10(real), real, "top-1", True, 0.9, 0.9 + drop, drop, 0, drop)
    time = float(KNOWN.time[number])
    speed = 300 / time
    facts = (speed, speed, speed, int(KNOWN.size[number]), 0.5, 1.0, 0.0, 0.0)
    found = Evaluated(str(number), 1, "fast", (), score, *facts)
    return Seen(KNOWN.config(number), found, time)


def _searched(goals: TuneGoals) -> list[int]:
    seen: list[Seen] = []
    numbers: list[int] = []
    while (number := next_of(KNOWN, seen, goals)) is not None:
        numbers.append(number)
        seen.append(seen_at(number))
    best = goals.best([s.found for s in seen])
    return [*numbers, int(best.key)]


def test_a_drop_is_found_by_bisection() -> None:
    goals = TuneGoals(max_drop=0.001)  # noise 1e-4: number 42
    *tried, best = _searched(goals)
    assert best in (42, 43)  # nearer to each other than what is worth an evaluation
    assert len(tried) <= 10


def test_the_cheapest_is_enough_where_it_keeps_the_goal() -> None:
    assert _searched(TuneGoals(max_drop=1.0)) == [0, 0]


def test_where_nothing_keeps_the_goal_the_nearest_is_best() -> None:
    goals = TuneGoals(min_sqnr=90.0)
    *tried, best = _searched(goals)
    assert best == COUNT - 1
    assert len(tried) <= COUNT
    (told,) = goals.told(seen_at(best).found)
    assert told == "its outputs have 60.0 dB, 30.0 too few"


def test_what_is_in_float_for_nothing_is_put_back(model: Additive) -> None:  # noqa: F811  # as above
    groups = model.items.space.groups
    costly = 1  # for its weights, which nobody else needs
    names = [name for name, _ in model.items.points]
    heavy = [name.startswith(groups[costly].name) and "weight" in name for name in names]
    model = replace(model, errors=np.where(heavy, 1.0, 1e-6))
    assert sum(heavy)
    lifted = (*(len(g.choices) - 1 for g in groups[:-1]), 0)

    def seen(config: tuple[int, ...], drop: float) -> Seen:
        (noise,), _, _ = model.predict(np.array([config]))
        found = seen_at(1, float(noise)).found
        return Seen(config, replace(found, score=replace(found.score, drop=drop, high=drop)), 1.0)

    goals, whole = TuneGoals(max_drop=0.01), seen((0,) * len(groups), 0.5)
    config = leaner(model, [whole, seen(lifted, 0.0)], goals)
    assert config is not None
    assert [i for i, choice in enumerate(config) if choice] == [costly]
    assert leaner(model, [whole, seen(config, 0.0)], goals) is None
    assert leaner(model, [whole], goals) is None


def test_the_interval_decides_and_not_the_sample() -> None:
    found = seen_at(40).found
    lucky = replace(found, score=replace(found.score, drop=0.0, low=-0.02, high=0.02))
    goals = TuneGoals(max_drop=0.01)
    assert not goals.kept(lucky)
    (told,) = goals.told(lucky)
    assert "100 samples do not rule out 2 points, 1 more than allowed" in told
