"""Steps that solve layers one after the other, each from its weights and what it reads.

Such a step is the mathematics of one layer, a `LayerSolver`. In memory it runs on the rows of kept
samples, in the order of the network, here; block by block on moments of all data
(`blockwise.layer_shards`). Held-out rows judge the weights of each layer in both.
"""

from __future__ import annotations

from functools import partial

import torch

from qtool.algorithms.acceptance import HOLDOUT_SAMPLES
from qtool.algorithms.bias_correction import corrected_bias
from qtool.algorithms.exclusive_layers import Layer
from qtool.algorithms.layer_reconstruction import (
    SAMPLES,
    LayerSolution,
    reconstruct_layers,
    replay_constants,
)
from qtool.algorithms.pipeline import Step
from qtool.algorithms.weight_rounding.layer_samples import LayerSamples
from qtool.algorithms.weight_rounding.layer_solver import (
    LayerProblem,
    LayerSolver,
    best_solution,
)
from qtool.algorithms.weight_rounding.row_evidence import RowEvidence
from qtool.planning.plan import QuantPlan


def layer_step(
    name: str,
    solve: LayerSolver,
    reason: str,
    *,
    accuracy: str = "fast",
    samples: int = SAMPLES,
    low_bits: int = 0,
) -> Step:
    """Return a step that runs in memory and block by block.

    Biases are corrected for the new weights in memory.

    Args:
        name, accuracy, samples, low_bits: see `Step`.
        solve: proposes the weights of one layer.
        reason: why weights change, for the file.
    """
    return Step(
        name,
        partial(reconstruct_layers, step=name, reason=reason, solver=partial(_solve, name, solve)),
        accuracy=accuracy,
        samples=samples,
        replay=replay_constants,
        low_bits=low_bits,
        judges=HOLDOUT_SAMPLES,
        optional=True,
        solve_layer=solve,
        reason=reason,
    )


def _solve(
    step: str, solve: LayerSolver, plan: QuantPlan, layer: Layer, samples: LayerSamples
) -> LayerSolution:
    """Return the weights of a layer, None where rounding to nearest is better, and their bias."""
    best, note = None, ""
    training, holdout = samples.rows(holdout=False), samples.rows(holdout=True)
    if training is None or holdout is None:
        note = "there are too few samples"
    else:
        exact = layer.matrix.cpu()
        evidence = RowEvidence.of(exact, training, holdout)
        problem = LayerProblem(
            layer.node, exact, layer.weight_params, layer.weight.shape, plan, evidence
        )
        try:
            best = best_solution(problem, {step: solve})
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not declare it
            note = "the Hessian of its inputs is singular"
    note = note and f"{layer.name}.weight: rounded to nearest, since {note}"
    weight = None if best is None else best[1]
    return LayerSolution(weight, corrected_bias(layer, samples, weight), note)
