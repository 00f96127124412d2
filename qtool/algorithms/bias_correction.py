"""The step `bias-correction`: biases restore the mean results of their layers.

Rounding shifts the mean of each output channel of a layer; the bias takes the difference, measured
on kept samples (bias correction; Nagel et al. 2019, and Finkelstein et al. 2019). Layers are
corrected in order, each with the inputs it has in the quantized network. The step `gptq` corrects
biases, too, after it has rounded the weights.
"""

from __future__ import annotations

import torch

from qtool.algorithms.exclusive_layers import Layer
from qtool.algorithms.layer_rows import as_matrix
from qtool.algorithms.layer_solution import LayerSolution
from qtool.algorithms.weight_rounding.layer_samples import LayerMeans, LayerSamples
from qtool.planning.plan import QuantPlan


def corrected_bias(
    layer: Layer, means: LayerMeans, weight: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the bias with which the mean result of a layer equals its mean target.

    Args:
        means: those of its inputs in the quantized network and of its targets.
        weight: weight on its grid; None: rounded to nearest.

    Returns:
        [out], of the bias's dtype; None where the layer has no bias, or the new one is not finite.
    """
    if layer.bias is None:
        return None
    if weight is None:
        weight = layer.nearest
    matrix = as_matrix(layer.node, weight).double()
    product = (matrix @ means.mean_input()[:, :, None]).flatten()
    bias = (means.mean_target() - product).to(layer.bias.dtype)
    return bias if bool(bias.isfinite().all()) else None


def solve(plan: QuantPlan, layer: Layer, samples: LayerSamples) -> LayerSolution:
    """Return the corrected bias of a layer, whose weights are rounded to nearest."""
    return LayerSolution(None, corrected_bias(layer, samples.means, None))
