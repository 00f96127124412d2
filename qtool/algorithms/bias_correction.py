"""The step `bias-correction`: biases restore the mean results of their layers.

Rounding shifts the mean of each output channel of a layer; the bias takes the difference, measured
on kept samples (bias correction; Nagel et al. 2019, and Finkelstein et al. 2019). Layers are
corrected in order, each with the inputs it has in the quantized network. The step `gptq` corrects
biases, too, after it has rounded the weights.
"""

from __future__ import annotations

import torch
from torch import fx

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
from qtool.core import graph as G

NAME = "bias-correction"
REASON = "biases compensate the shift of their layers' mean results by rounding"


def corrected_bias(
    state: ConversionState, node: fx.Node, samples: LayerSamples, weight: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the bias with which the mean result of a layer equals its mean target.

    The means are over all positions of all kept samples.

    Args:
        weight: on its grid; None: rounded to nearest.

    Returns:
        [out], of the bias's dtype; None where the layer has no bias, or the new one is not finite.
    """
    if len(node.args) < 3 or not isinstance(node.args[2], fx.Node):
        return None
    if weight is None:
        params = point_params(state, f"{G.name_of(node)}.weight")
        weight = params.round_trip(constant_value(state, node, 1))
    product = (as_matrix(node, weight).double() @ samples.mean_input()[:, :, None]).flatten()
    bias = (samples.mean_target() - product).to(constant_value(state, node, 2).dtype)
    return bias if bool(bias.isfinite().all()) else None


def _solve(walk: LayerWalk, name: str, samples: LayerSamples) -> LayerSolution:
    return LayerSolution(None, corrected_bias(walk.state, walk.layers[name], samples, None))


def _propose(state: ConversionState) -> ConversionState:
    if (lack := missing_samples(state)) is not None:
        return state.with_notes(f"{NAME}: {lack}")
    walk = walk_layers(state, NAME, _solve, needs_rows=False)
    return walk.result(NAME, walk.corrected, REASON)


BIAS_CORRECTION = Step(
    NAME, _propose, accuracy="", samples=SAMPLES, replay=replay_constants, optional=True
)
