"""Files of a search, and those that others wrote."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

import qtool
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.plugins.search.candidate_files import finalists, time_finalists
from qtool.plugins.search.goals import TuneGoals
from qtool.plugins.search.judge import Score, Trial
from tests.plugins.search.measured import top_1

WIDE = 1e4
HOSTILE = (1, 3, 4)


class Cancelling(nn.Module):
    """Reads an input twice, with huge weights that add up to nothing: they leave the others no
    codes, and no scale of a channel helps, since each output has both."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2 * channels, channels, 3, padding=1)
        with torch.no_grad():
            weight = self.layer.weight
            huge = WIDE * float(weight.abs().median())
            weight[:, 0] += huge
            weight[:, channels] = weight[:, channels] - huge

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([x, x], 1))


def test_exactly_those_are_lifted() -> None:
    torch.manual_seed(0)
    layers = [Cancelling(24) if i in HOSTILE else nn.Conv2d(24, 24, 3, padding=1) for i in range(6)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    seen, asked = torch.randn(32, 24, 5, 5), torch.randn(64, 24, 5, 5)
    found = qtool.tune(
        net,
        [seen],
        [asked],
        goals=qtool.TuneGoals(min_sqnr=30.0, smallest=True),
        options=qtool.SearchOptions(choices=("static",), evaluations=8, timing=0.01),
        accuracy=("fast",),
    )
    assert found.reached
    lifted = {layer.name for layer in found.layers if layer.choice != "static"}
    assert lifted == {f"{i}.layer" for i in HOSTILE}, str(found)


GOALS = TuneGoals(max_drop=0.01)


def _file(key: str, speed: float, drop: float = 0.0) -> Trial:
    score = Score(100, 30.0, 1e-3, top_1(drop, drop, drop))
    return Trial(key, "fast", (), score, Ratio(*(speed,) * 5), 1000, 0.5, 1.0)


def test_those_that_keep_the_goal_and_may_be_the_fastest() -> None:
    found = (_file("a", 2.0), _file("b", 1.8), _file("c", 1.5), _file("lost", 3.0, 0.02))
    assert [e.key for e in finalists(GOALS, found)] == ["a", "b"]
    assert len(finalists(replace(GOALS, min_speedup=9.0), found)) == 2  # however far they are
    assert not finalists(GOALS, (found[0], found[2]))  # one alone: nothing to compare
    assert not finalists(replace(GOALS, smallest=True), found)  # no time decides


def test_the_speeds_of_one_session_decide() -> None:
    """Two levels of recovery are the same kernels: when they were evaluated one seemed faster."""
    files = (_file("a", 2.17), _file("b", 1.84))

    def retimed(trials: Sequence[Trial]) -> tuple[Trial, ...]:
        speeds = [Ratio(r, 1.5, 2.5, r, r) for r in (1.9, 2.1)]
        return tuple(replace(t, speed=s) for t, s in zip(trials, speeds, strict=True))

    assert GOALS.best(files).key == "a"
    again = time_finalists(GOALS, files, retimed)
    assert GOALS.best(again).key == "b"
    assert [(e.speedup, e.speed.low) for e in again] == [(1.9, 1.5), (2.1, 1.5)]
    assert time_finalists(GOALS, files[:1], retimed) == ()
