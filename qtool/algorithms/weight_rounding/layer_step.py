"""Steps that solve layers one after the other, each from its weights and what it reads.

Such a step is the mathematics of one layer, a `LayerSolver`. In memory it runs on the rows of kept
samples, in the order of the network, here; block by block on moments of all data
(`blockwise.layer_shards`). Held-out rows judge the weights of each layer in both.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import fx

from qtool.algorithms.acceptance import HOLDOUT_SAMPLES
from qtool.algorithms.bias_correction import corrected_bias
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.exclusive_layers import constant_value, point_params
from qtool.algorithms.layer_reconstruction import (
    SAMPLES,
    LayerSolution,
    LayerWalk,
    missing_samples,
    replay_constants,
    walk_layers,
)
from qtool.algorithms.layer_rows import as_matrix
from qtool.algorithms.pipeline import Step
from qtool.algorithms.weight_rounding.layer_samples import LayerSamples
from qtool.algorithms.weight_rounding.layer_solver import (
    LayerProblem,
    LayerSolver,
    best_solution,
)
from qtool.algorithms.weight_rounding.row_evidence import RowEvidence
from qtool.core import graph as G


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
        partial(_propose, name, solve, reason),
        accuracy=accuracy,
        samples=samples,
        replay=replay_constants,
        low_bits=low_bits,
        judges=HOLDOUT_SAMPLES,
        optional=True,
        solve_layer=solve,
        reason=reason,
    )


def _propose(name: str, solve: LayerSolver, reason: str, state: ConversionState) -> ConversionState:
    if (lack := missing_samples(state)) is not None:
        return state.with_notes(f"{name}: {lack}")
    walk = walk_layers(state, name, partial(_solve, name, solve), needs_rows=True)
    return walk.result(name, walk.rounded, reason)


def _solve(
    step: str, solve: LayerSolver, walk: LayerWalk, name: str, samples: LayerSamples
) -> LayerSolution:
    node = walk.layers[name]
    weight, note = _solve_weight(step, solve, walk.state, node, samples)
    return LayerSolution(weight, corrected_bias(walk.state, node, samples, weight), note)


def _solve_weight(
    step: str, solve: LayerSolver, state: ConversionState, node: fx.Node, samples: LayerSamples
) -> tuple[torch.Tensor | None, str]:
    """Return the weights of a layer, None where rounding to nearest is better, and a note or ""."""
    name, weight = f"{G.name_of(node)}.weight", constant_value(state, node, 1)
    training, holdout = samples.rows(holdout=False), samples.rows(holdout=True)
    if training is None or holdout is None:
        return None, f"{name}: rounded to nearest, since there are too few samples"
    exact, params = as_matrix(node, weight), point_params(state, name)
    evidence = RowEvidence.of(exact, training, holdout)
    problem = LayerProblem(node, exact, params, weight.shape, state.plan, evidence)
    try:
        best = best_solution(problem, {step: solve})
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not declare it
        return None, f"{name}: rounded to nearest, since the Hessian of its inputs is singular"
    return (None if best is None else best[1]), ""
