"""The step `gptq`: weights rounded for the results of their layers, not each to its nearest code.

Layer by layer (`layer_reconstruction`), the weights first move towards the target of the layer, as
far as held-out samples improve, and are then rounded with error feedback (layer_solver.py). The
rounded weights are kept if they give smaller errors on held-out samples than rounding to nearest.
The bias then compensates what remains of the mean error (`bias_correction`). Rows of tokens are
weighted by their effect on the outputs (token_weights.py). AdaRound (Nagel et al. 2020) minimises
the same layer-wise error by learning for each weight whether it is rounded up or down.
"""

from __future__ import annotations

from qtool.algorithms.weight_rounding.layer_solver import solve_layer
from qtool.algorithms.weight_rounding.layer_step import layer_step

REASON = "weights are rounded for the results of their layers, on samples of the calibration"
LOW_BIT_SAMPLES = 512  # weights of few bits have more error to compensate

GPTQ = layer_step("gptq", solve_layer, REASON, accuracy="balanced", low_bits=LOW_BIT_SAMPLES)
