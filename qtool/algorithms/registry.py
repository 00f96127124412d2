"""What changes a model on its way to integers: the steps of a conversion, in order.

Adding one is a file here, its line in `STEPS`, and a test. A step of a user's own is registered by
`register_step` and then runs like these.
"""

from __future__ import annotations

from qtool.algorithms.batch_norm_reestimation import BATCH_NORM_REESTIMATION
from qtool.algorithms.bias_correction import BIAS_CORRECTION
from qtool.algorithms.cross_layer_equalization.equalization import CROSS_LAYER_EQUALIZATION
from qtool.algorithms.learned_scales.training import LEARNED_SCALES
from qtool.algorithms.pipeline import SOLVE, Step
from qtool.algorithms.smooth_quant.smoothing import SMOOTH_QUANT
from qtool.algorithms.weight_rounding.rounding import GPTQ
from qtool.algorithms.weight_scale_search import WEIGHT_SCALE_SEARCH
from qtool.core.data.calibration_samples import HOLDOUT_DIVISOR
from qtool.core.errors import PlanError
from qtool.core.step_names import current_step_name
from qtool.planning.plan import QuantPlan
from qtool.planning.recipe import ACCURACIES, Recipe

ESTIMATE_SAMPLES = 64
"""Samples that nothing learned from, which say what to expect of new ones."""

STEPS: list[Step] = [
    CROSS_LAYER_EQUALIZATION,
    SMOOTH_QUANT,  # what no weights in front of a linear layer took on
    SOLVE,  # the ranges of the graph as the steps before have left it
    WEIGHT_SCALE_SEARCH,
    GPTQ,
    BIAS_CORRECTION,
    BATCH_NORM_REESTIMATION,
    LEARNED_SCALES,  # of all that the steps before have settled
]


def select_steps(recipe: Recipe) -> list[Step]:
    """The steps that a recipe takes, in order: those it names, or those of its accuracy.

    Raises:
        PlanError: it names one that there is not.
    """
    if recipe.recover is None:
        level = ACCURACIES[recipe.accuracy]
        return [s for s in STEPS if s.accuracy and ACCURACIES[s.accuracy] <= level]
    names = [s.name for s in STEPS if s is not SOLVE]
    for name in recipe.recover:
        if name not in names:
            known = ", ".join(names)
            raise PlanError(f"there is no step '{name}' to recover with; there are: {known}")
    return [s for s in STEPS if s is SOLVE or s.name in recipe.recover]


def samples_to_keep(plan: QuantPlan) -> int:
    """How many samples are kept with a calibration for a plan: what steps learn from is two of
    three. Where none learns, and tensors are observed, those that say what to expect."""
    steps = select_steps(plan.recipe)
    most = max(max(step.samples, step.low_bits * plan.low_bits) for step in steps)
    if not most:
        return ESTIMATE_SAMPLES if plan.observed() else 0
    return most + most // (HOLDOUT_DIVISOR - 1)


def register_step(step: Step, *, before: str | None = SOLVE.name) -> None:
    """Adds a step of one's own to every conversion that follows.

    Args:
        step: see `qtool.conversion.Step`.
        before: the step that it stands before, by default the one that solves scales and zero
            points; None puts it last, where parameters are known.

    Raises:
        PlanError: there is one of that name already, or none called `before`.
    """
    names = [s.name for s in STEPS]
    if current_step_name(step.name) in names:
        raise PlanError(f"a step '{step.name}' is registered already")
    before = None if before is None else current_step_name(before)
    if before is not None and before not in names:
        raise PlanError(f"there is no step '{before}'; there are: {', '.join(names)}")
    STEPS.insert(len(STEPS) if before is None else names.index(before), step)
