"""Which evaluation is worth it for the goals: of the front, or one that leaves less in float."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from qtool.search.archive import Trial
from qtool.search.choices import Config
from qtool.search.cost_model import CostModel
from qtool.search.goals import TuneGoals
from qtool.search.pareto_front import Candidates

MIN_GAIN = 0.01  # of the cost: files nearer to each other than this are alike
NOISE_STEP = 4.0  # by which noise is lowered as long as nothing was exact enough: 6 dB
NOISE_MARGIN = 0.9  # of the noise that is allowed: what is aimed at
NOISE_FLOOR = 1e-9  # noise below this is none: -90 dB


@dataclass(frozen=True)
class Observation:
    """An evaluated configuration, with its cost as the model counts it."""

    config: Config
    trial: Trial
    cost: float


def next_candidate(
    known: Candidates,
    seen: Sequence[Observation],
    goals: TuneGoals,
    refused: Collection[Config] = (),
) -> int | None:
    """The number of the cheapest configuration that may lose little enough: noise is bisected
    between the least that was too much and the most that was not. None where none is worth it.

    Args:
        known: the front as predicted now.
        refused: what turned out to be no plan.
    """
    done = {s.config for s in seen} | set(refused)
    open_ = [i for i in range(len(known.configs)) if known.config(i) not in done]
    cost = known.size if goals.smallest else known.time
    good = [s for s in seen if goals.meets_accuracy(s.trial)]
    noises = [s.trial.score.noise for s in seen if not goals.meets_accuracy(s.trial)]
    limit = min(noises, default=math.inf)
    dearest = min((s.cost for s in good), default=math.inf) * (1 - MIN_GAIN)
    worth = [i for i in open_ if known.noise[i] < limit and cost[i] < dearest]
    if not worth:
        return None
    most = max((s.trial.score.noise for s in good), default=0.0)
    if noises and good:
        aim = math.sqrt(max(most, NOISE_FLOOR) * limit)
    elif noises:
        aim = limit / NOISE_STEP ** len(noises)
    else:
        aim = math.inf
    if goals.max_noise is not None and len(seen) < 2 * len(noises) + 2:
        aim = (
            min(aim, goals.max_noise * NOISE_MARGIN)
            if goals.max_drop is not None
            else goals.max_noise * NOISE_MARGIN
        )
    exact = [i for i in worth if known.noise[i] <= aim]
    return min(exact, key=lambda i: cost[i]) if exact else min(worth, key=lambda i: known.noise[i])


def quantize_more(
    model: CostModel,
    seen: Sequence[Observation],
    goals: TuneGoals,
    refused: Collection[Config] = (),
) -> Config | None:
    """The cheapest that keeps the goals, without what it leaves in float for little: groups are put
    back, those of least noise first, up to half of the way (in dB) to what was too much. A file of
    unlike neighbours is often predicted to be faster than it is. None where there is nothing new.
    """
    good = [s for s in seen if goals.meets_accuracy(s.trial)]
    bad = [s.trial.score.noise for s in seen if not goals.meets_accuracy(s.trial)]
    if not good or not bad:
        return None
    best = min(good, key=lambda s: s.cost)
    (known,) = model.predict(np.array([best.config]))[0]
    allowed = known * math.sqrt(min(bad) / max(best.trial.score.noise, NOISE_FLOOR))

    def back(config: Config, group: int) -> tuple[Config, float]:
        found = (*config[:group], 0, *config[group + 1 :])
        return found, float(model.predict(np.array([found]))[0][0])

    config = best.config
    lifted = [g for g, choice in enumerate(config) if choice]
    for group in sorted(lifted, key=lambda g: back(best.config, g)[1]):
        fewer, noise = back(config, group)
        config = fewer if noise <= allowed else config
    done = {s.config for s in seen} | set(refused)
    return None if config in done else config
