"""The step `gptq`: weights rounded for the results of their layers, not each to its nearest code.

Layer by layer (`layer_reconstruction`), the weights first move towards the target of the layer, as
far as held-out samples improve, and are then rounded with error feedback (gptq.py). The rounded
weights are kept if they give smaller errors on held-out samples than rounding to nearest. The bias
then compensates what remains of the mean error (`bias_correction`). Rows of tokens are weighted by
their effect on the outputs (token_weights.py). AdaRound (Nagel et al. 2020) minimises the same
layer-wise error by learning for each weight whether it is rounded up or down.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.algorithms.acceptance import not_worse
from qtool.algorithms.bias_correction import corrected_bias
from qtool.algorithms.exclusive_layers import constant_value, point_params
from qtool.algorithms.layer_reconstruction import (
    COLUMNS,
    SAMPLES,
    LayerSolution,
    LayerWalk,
    missing_samples,
    replay_constants,
    walk_layers,
)
from qtool.algorithms.layer_rows import as_matrix, as_weight
from qtool.algorithms.pipeline import ConversionState, Step
from qtool.algorithms.skip_on_failure import LESS_ACCURATE, skip_on_failure
from qtool.algorithms.weight_rounding.gptq import (
    Grid,
    PairBounds,
    correct_weight,
    hessian,
    invert_hessian,
    round_columns,
)
from qtool.algorithms.weight_rounding.layer_samples import LayerSamples
from qtool.algorithms.weight_rounding.pair_bounds import pair_bounds
from qtool.core import graph as G
from qtool.core.types import QuantParams

NAME = "gptq"
REASON = "weights are rounded for the results of their layers, on samples of the calibration"
LOW_BIT_SAMPLES = 512  # weights of few bits have more error to compensate

Rows = tuple[torch.Tensor, torch.Tensor]
"""Inputs [groups, rows, in] and targets [groups, rows, out] of a layer."""


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
    params = point_params(state, name)
    exact = as_matrix(node, weight)
    training, holdout = samples.rows(holdout=False), samples.rows(holdout=True)
    if training is None or holdout is None:
        return None, f"{name}: rounded to nearest, since there are too few samples"
    try:
        pairs = pair_bounds(state.plan, node, exact, params, weight.shape)
        rounded = _round_matrix(node, exact, training, holdout, params, weight.shape, pairs)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not declare it
        return None, f"{name}: rounded to nearest, since the Hessian of its inputs is singular"
    nearest = as_matrix(node, params.round_trip(weight))
    if not _error(rounded, *holdout) < _error(nearest, *holdout):
        return None, ""
    return as_weight(node, rounded, weight.shape), ""


def _round_matrix(
    node: fx.Node,
    exact: torch.Tensor,
    training: Rows,
    holdout: Rows,
    params: QuantParams,
    shape: torch.Size,
    pairs: PairBounds | None,
) -> torch.Tensor:
    """Round the weights column block by column block, with error feedback.

    The float correction towards the target is damped by its gain on held-out rows, since most of
    the remaining error is noise.

    Args:
        exact: float weights [groups, out, in].
        shape: of the weight in the graph.
    """
    scale, zero = (
        as_matrix(node, params.along(t, shape).expand(shape)).to(exact.dtype)
        for t in (params.scale, params.zero_point)
    )
    levels = params.qtype.qmin, params.qtype.qmax
    rounded = torch.empty_like(exact)
    error, holdout_error = (target - rows @ exact.mT for rows, target in (training, holdout))
    for block in torch.arange(exact.shape[-1]).split(COLUMNS):
        x, other, weight = training[0][:, :, block], holdout[0][:, :, block], exact[:, :, block]
        grid = Grid(scale[:, :, block], zero[:, :, block], *levels, pairs, int(block[0]))
        inverse = invert_hessian(hessian(x))
        correction = correct_weight(weight, error.mT @ x, inverse) - weight
        repaired = other @ correction.mT
        gain = (holdout_error * repaired).sum() / repaired.square().sum().clamp(min=1e-30)
        corrected = weight + gain.clamp(0, 1) * correction
        rounded[:, :, block] = round_columns(corrected, inverse, grid)
        if int(block[-1]) + 1 < exact.shape[-1]:
            change = (rounded[:, :, block] - weight).mT
            error, holdout_error = error - x @ change, holdout_error - other @ change
    return rounded


def _error(weight: torch.Tensor, rows: torch.Tensor, target: torch.Tensor) -> float:
    """Return the squared error of a layer's results; rows have mean 0, as biases take the mean."""
    return float((target - rows @ weight.mT).square().sum())


@skip_on_failure(NAME)
def _run(state: ConversionState) -> ConversionState:
    if (lack := missing_samples(state)) is not None:
        return state.with_notes(f"{NAME}: {lack}")
    walk = walk_layers(state, NAME, _solve, needs_rows=True)
    after = walk.result(NAME, walk.rounded, REASON)
    return after if not_worse(state, after) else state.with_notes(f"{NAME}: {LESS_ACCURATE}")


GPTQ = Step(
    NAME,
    _run,
    accuracy="balanced",
    samples=SAMPLES,
    replay=replay_constants,
    low_bits=LOW_BIT_SAMPLES,
)
