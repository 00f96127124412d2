"""The step `gptq`: weights rounded for the results of their layers, not each to its nearest code.

Layer by layer (`layer_reconstruction`), the weights first move towards the target of the layer, as
far as held-out samples improve, and are then rounded with error feedback (layer_solver.py). The
rounded weights are kept if they give smaller errors on held-out samples than rounding to nearest.
The bias then compensates what remains of the mean error (`bias_correction`). Rows of tokens are
weighted by their effect on the outputs (token_weights.py). AdaRound (Nagel et al. 2020) minimises
the same layer-wise error by learning for each weight whether it is rounded up or down.
"""

from __future__ import annotations

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
from qtool.algorithms.weight_rounding.layer_solver import solve_layer
from qtool.algorithms.weight_rounding.row_evidence import RowEvidence
from qtool.core import graph as G

NAME = "gptq"
REASON = "weights are rounded for the results of their layers, on samples of the calibration"
LOW_BIT_SAMPLES = 512  # weights of few bits have more error to compensate


def _solve(walk: LayerWalk, name: str, samples: LayerSamples) -> LayerSolution:
    node = walk.layers[name]
    weight, note = _round_layer(walk.state, node, samples)
    return LayerSolution(weight, corrected_bias(walk.state, node, samples, weight), note)


def _round_layer(
    state: ConversionState, node: fx.Node, samples: LayerSamples
) -> tuple[torch.Tensor | None, str]:
    """Return the rounded weights of a layer, None where rounding to nearest is better, and a note
    or ""."""
    name, weight = f"{G.name_of(node)}.weight", constant_value(state, node, 1)
    training, holdout = samples.rows(holdout=False), samples.rows(holdout=True)
    if training is None or holdout is None:
        return None, f"{name}: rounded to nearest, since there are too few samples"
    exact, params = as_matrix(node, weight), point_params(state, name)
    evidence = RowEvidence.of(exact, training, holdout)
    try:
        return solve_layer(node, exact, params, weight.shape, state.plan, evidence), ""
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not declare it
        return None, f"{name}: rounded to nearest, since the Hessian of its inputs is singular"


def _propose(state: ConversionState) -> ConversionState:
    if (lack := missing_samples(state)) is not None:
        return state.with_notes(f"{NAME}: {lack}")
    walk = walk_layers(state, NAME, _solve, needs_rows=True)
    return walk.result(NAME, walk.rounded, REASON)


GPTQ = Step(
    NAME,
    _propose,
    accuracy="balanced",
    samples=SAMPLES,
    replay=replay_constants,
    low_bits=LOW_BIT_SAMPLES,
    judges=HOLDOUT_SAMPLES,
    optional=True,
)
