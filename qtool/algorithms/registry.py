"""The steps of a conversion, in order of their run.

- `cross-layer-equalization`: equal channel ranges across layers (Nagel et al. 2019).
- `smooth-quant`: wide activation channels moved into the weights (Xiao et al. 2022).
- `output-equalization`: one range for the channels of results that kernels round to codes.
- `solve`: scales and zero points from the calibrated ranges.
- `sensitive-layers`: the layers that make most of the error, in float (Dong et al. 2019).
- `gptq`: weights rounded with error feedback (Frantar et al. 2022).
- `bias-correction`: biases that restore mean layer outputs (Nagel et al. 2019; Finkelstein et al.
  2019).
- `learned-scales`: scales, biases and low-bit weights trained by gradient (LSQ, Esser et al. 2020).

Rows name functions: the module of a step is imported when it runs. A new step needs a file in this
package, a row in `STEPS`, its name in `core.option_names` and a test. `register_step` adds the
steps of users.
"""

from __future__ import annotations

from functools import partial

from qtool.algorithms.acceptance import HOLDOUT_SAMPLES
from qtool.algorithms.pipeline import (
    LAYER_SAMPLES,
    SOLVE,
    Scope,
    Step,
    layer_step,
    reconstruct_layers,
    replay_constants,
)
from qtool.core.errors import PlanError
from qtool.core.on_use import OnUse
from qtool.core.option_names import unknown_name
from qtool.planning.plan import QuantPlan
from qtool.planning.recipe import ACCURACIES, Recipe

ESTIMATE_SAMPLES = 64
"""Samples on which the accuracy is measured where too few samples are there to hold some out."""


def _function(where: str) -> OnUse:
    return OnUse(f"qtool.algorithms.{where}")


CROSS_LAYER_EQUALIZATION = Step(
    "cross-layer-equalization",
    _function("cross_layer_equalization.equalization:propose"),
    _function("cross_layer_equalization.equalization:probes"),
    accuracy="balanced",
    samples=128,  # for the new ranges
    replay=_function("cross_layer_equalization.equalization:replay"),
    judges=HOLDOUT_SAMPLES,
    optional=True,
)
SMOOTH_QUANT = Step(
    "smooth-quant",
    _function("smooth_quant:propose"),
    _function("smooth_quant:probes"),
    replay=_function("smooth_quant:replay"),
)
OUTPUT_EQUALIZATION = Step(
    "output-equalization",
    _function("output_equalization:propose"),
    _function("output_equalization:probes"),
    replay=_function("output_equalization:replay"),
)
SENSITIVE_LAYERS = Step("sensitive-layers", _function("sensitive_layers:propose"), optional=True)
"""It reads a few of the samples that are kept in any case, and asks for none."""
GPTQ = layer_step(
    "gptq",
    _function("weight_rounding.layer_solver:solve_layer"),
    "weights are rounded for the results of their layers, on samples of the calibration",
    accuracy="balanced",
    low_bits=512,  # weights of few bits have more error to compensate
)
BIAS_CORRECTION = Step(
    "bias-correction",
    partial(
        reconstruct_layers,
        step="bias-correction",
        reason="biases compensate the shift of their layers' mean results by rounding",
        solver=_function("bias_correction:solve"),
        needs_rows=False,
    ),
    accuracy="",
    samples=LAYER_SAMPLES,
    replay=replay_constants,
    optional=True,
)
LEARNED_SCALES = Step(
    "learned-scales",
    _function("learned_scales.training:propose"),
    accuracy="best",
    samples=1024,
    judges=256,
    scope=Scope.PART,
)

STEPS: list[Step] = [
    CROSS_LAYER_EQUALIZATION,
    SMOOTH_QUANT,  # channels that equalization could not move into other weights
    OUTPUT_EQUALIZATION,
    SOLVE,  # for the graph as the steps before have changed it
    SENSITIVE_LAYERS,  # the steps behind it work for the plan that it leads to
    GPTQ,
    BIAS_CORRECTION,
    LEARNED_SCALES,  # starts from the result of all others
]


def select_steps(recipe: Recipe) -> list[Step]:
    """Return the steps of a recipe, in order: those it names, or those of its accuracy level.

    Raises:
        PlanError: it names an unknown step.
    """
    if recipe.recover is None:
        level = ACCURACIES[recipe.accuracy]
        return [s for s in STEPS if s.accuracy and ACCURACIES[s.accuracy] <= level]
    names = [s.name for s in STEPS if s is not SOLVE]
    for name in recipe.recover:
        if name not in names:
            raise PlanError(unknown_name("recovery step", name, names))
    return [s for s in STEPS if s is SOLVE or s.name in recipe.recover]


def select_block_steps(recipe: Recipe) -> tuple[list[Step], tuple[str, ...]]:
    """Return the steps of a recipe that run block by block, in order, and the names of the others.

    Raises:
        PlanError: the recipe names an unknown step, or one that needs the whole network.
    """
    steps = select_steps(recipe)
    others = tuple(s.name for s in steps if s.scope is Scope.NETWORK)
    if recipe.recover is not None and others:
        known = (s for s in STEPS if s.scope is not Scope.NETWORK and s is not SOLVE)
        possible = ", ".join(s.name for s in known)
        raise PlanError(
            f"the step '{others[0]}' needs the whole network in memory and does not run block by "
            f"block; those that do are: {possible}"
        )
    return [s for s in steps if s.scope is not Scope.NETWORK], others


def samples_to_keep(plan: QuantPlan) -> int:
    """Return how many samples a calibration keeps for a plan.

    Steps train on at least two thirds of them, and the others judge. Where no step trains, and
    tensors are observed, the samples are what accuracy is measured on if none is held out.
    """
    learning = samples_for_steps(plan.recipe, plan.low_bits)
    return learning or (ESTIMATE_SAMPLES if plan.observed() else 0)


def samples_for_steps(recipe: Recipe, low_bits: bool) -> int:
    """Return how many samples the steps of a recipe need, with held-out ones; 0 if none learns.

    Args:
        low_bits: some weights have fewer than 8 bits.
    """
    most = max(max(step.samples, step.low_bits * low_bits) for step in select_steps(recipe))
    return most + most // 2


def register_step(step: Step, *, before: str | None = SOLVE.name) -> None:
    """Add your own step to every conversion that follows.

    Args:
        step: see `qtool.algorithms.pipeline.Step`.
        before: name of the step to run it before, by default the one that solves scales and zero
            points; None runs it last, when parameters are known.

    Raises:
        PlanError: a step of that name is registered, or there is none called `before`.
    """
    names = [s.name for s in STEPS]
    if step.name in names:
        raise PlanError(f"a step '{step.name}' is registered already")
    if before is not None and before not in names:
        raise PlanError(f"there is no step '{before}'; there are: {', '.join(names)}")
    STEPS.insert(len(STEPS) if before is None else names.index(before), step)
