"""The next configuration to evaluate for the goals: on the Pareto front, or with less in float."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from qtool.plugins.search.archive import Trial
from qtool.plugins.search.choices import Config
from qtool.plugins.search.cost_model import CostModel
from qtool.plugins.search.goals import TuneGoals
from qtool.plugins.search.pareto_front import Candidates

MIN_GAIN = 0.01  # relative cost saving that is worth an evaluation
NOISE_STEP = 4.0  # factor (6 dB) to lower the noise by, until a file is accurate enough
NOISE_MARGIN = 0.9  # share of the allowed noise to aim at
NOISE_FLOOR = 1e-9  # -90 dB: less counts as no noise


@dataclass(frozen=True)
class Observation:
    """An evaluated configuration, with its cost in the unit of the cost model."""

    config: Config
    trial: Trial
    cost: float


def next_candidate(
    front: Candidates,
    observations: Sequence[Observation],
    goals: TuneGoals,
    refused: Collection[Config] = (),
) -> int | None:
    """Return the index of the cheapest configuration that may meet the accuracy goals, or None.

    The noise is bisected between the smallest that missed the goals and the largest that met them.
    None if no configuration is worth an evaluation.

    Args:
        front: as predicted by the corrected model.
        refused: configurations that cannot be converted.
    """
    done = {s.config for s in observations} | set(refused)
    open_ = [i for i in range(len(front.configs)) if front.config(i) not in done]
    cost = front.size if goals.smallest else front.time
    good = [s for s in observations if goals.meets_accuracy(s.trial)]
    noises = [s.trial.score.noise for s in observations if not goals.meets_accuracy(s.trial)]
    limit = min(noises, default=math.inf)
    cost_limit = min((s.cost for s in good), default=math.inf) * (1 - MIN_GAIN)
    worth = [i for i in open_ if front.noise[i] < limit and cost[i] < cost_limit]
    if not worth:
        return None
    most = max((s.trial.score.noise for s in good), default=0.0)
    if noises and good:
        aim = math.sqrt(max(most, NOISE_FLOOR) * limit)
    elif noises:
        aim = limit / NOISE_STEP ** len(noises)
    else:
        aim = math.inf
    if goals.max_noise is not None and len(observations) < 2 * len(noises) + 2:
        allowed = goals.max_noise * NOISE_MARGIN
        aim = allowed if goals.max_drop is None else min(aim, allowed)
    exact = [i for i in worth if front.noise[i] <= aim]
    return min(exact, key=lambda i: cost[i]) if exact else min(worth, key=lambda i: front.noise[i])


def quantize_more(
    model: CostModel,
    observations: Sequence[Observation],
    goals: TuneGoals,
    refused: Collection[Config] = (),
) -> Config | None:
    """Return the cheapest configuration that meets the goals with fewer groups in float, or None.

    Groups are quantized again, those of least noise first, up to half of the way (in dB) to the
    noise that missed the goals. Files with many boundaries between integers and floats are often
    slower than predicted. None if the configuration was evaluated before.
    """
    good = [s for s in observations if goals.meets_accuracy(s.trial)]
    bad = [s.trial.score.noise for s in observations if not goals.meets_accuracy(s.trial)]
    if not good or not bad:
        return None
    best = min(good, key=lambda s: s.cost)
    (noise,) = model.predict(np.array([best.config]))[0]
    allowed = noise * math.sqrt(min(bad) / max(best.trial.score.noise, NOISE_FLOOR))

    def quantize(config: Config, group: int) -> tuple[Config, float]:
        changed = (*config[:group], 0, *config[group + 1 :])
        return changed, float(model.predict(np.array([changed]))[0][0])

    config = best.config
    changed = [g for g, choice in enumerate(config) if choice]
    for group in sorted(changed, key=lambda g: quantize(best.config, g)[1]):
        fewer, noise = quantize(config, group)
        config = fewer if noise <= allowed else config
    done = {s.config for s in observations} | set(refused)
    return None if config in done else config
