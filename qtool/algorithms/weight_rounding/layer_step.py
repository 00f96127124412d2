"""Steps that solve layers one after the other, each from its weights and what it reads: `gptq`.

Such a step is the mathematics of one layer, a `LayerSolver`. In memory it runs on the rows of kept
samples (`RowEvidence`), in the order of the network, here; block by block on moments of all data
(`blockwise.layer_moments`). Held-out rows judge the weights of each layer in both.

`gptq` rounds weights for the results of their layers, not each to its nearest code. Layer by layer
(`layer_reconstruction`), the weights first move towards the target of the layer, as far as held-out
samples improve, and are then rounded with error feedback (layer_solver.py). The rounded weights are
kept if they give smaller errors on held-out samples than rounding to nearest. The bias then
compensates what remains of the mean error (`bias_correction`). Rows of tokens are weighted by their
effect on the outputs (`token_weights`). AdaRound (Nagel et al. 2020) minimises the same layer-wise
error by learning for each weight whether it is rounded up or down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from qtool.algorithms.bias_correction import corrected_bias
from qtool.algorithms.exclusive_layers import Layer
from qtool.algorithms.layer_rows import is_of_experts, without_rare_experts
from qtool.algorithms.layer_solution import LayerSolution
from qtool.algorithms.weight_rounding.gptq import InverseHessian, hessian, invert_hessian
from qtool.algorithms.weight_rounding.layer_samples import LayerSamples
from qtool.algorithms.weight_rounding.layer_solver import (
    COLUMNS,
    NEAREST,
    LayerSolver,
    solve_from,
)
from qtool.planning.plan import QuantPlan

Rows = tuple[torch.Tensor, torch.Tensor]
"""Inputs [groups, rows, in] and targets [groups, rows, out] of a layer."""


@dataclass(frozen=True, eq=False)
class RowEvidence:
    """A layer's rows; a `LayerEvidence`.

    Attributes:
        inputs: inputs of the training rows, [groups, rows, in].
        residual_moment: see `LayerEvidence`.
        holdout: see `LayerEvidence`.
        squares: the Hessian of all columns, [groups, in, in]; None where the rows are fewer, or the
            columns more than a block.
    """

    inputs: torch.Tensor
    residual_moment: torch.Tensor
    holdout: Rows
    squares: torch.Tensor | None = None

    @classmethod
    def of(cls, weight: torch.Tensor, training: Rows, holdout: Rows) -> RowEvidence:
        """Return the evidence for float weights [groups, out, in].

        The residuals of the training rows are needed in their products with the inputs alone,
        R^T X = Y^T X - W (X^T X): a product of `in` rows instead of one of all training rows.
        """
        (x, y), (other, target) = training, holdout
        rest = other, torch.baddbmm(target, other, weight.mT, alpha=-1)
        if weight.shape[-1] > min(COLUMNS, x.shape[1]):
            residual = torch.baddbmm(y, x, weight.mT, alpha=-1)
            return cls(x, residual.mT @ x, rest)
        squares = hessian(x)
        return cls(x, torch.baddbmm(y.mT @ x, weight, squares, alpha=-1), rest, squares)

    def inverse(self, start: int, end: int) -> InverseHessian:
        if self.squares is None:
            return invert_hessian(hessian(self.inputs[:, :, start:end]))
        return invert_hessian(self.squares[:, start:end, start:end])

    def products(self, start: int, end: int) -> torch.Tensor:
        if self.squares is None:
            return self.inputs[:, :, start:end].mT @ self.inputs[:, :, end:]
        return self.squares[:, start:end, end:]


def solve_by_rows(
    step: str, solve: LayerSolver, plan: QuantPlan, layer: Layer, samples: LayerSamples
) -> LayerSolution:
    """Return the weights of a layer, None where rounding to nearest is better, and their bias."""
    training, holdout = samples.rows(holdout=False), samples.rows(holdout=True)
    if training is None or holdout is None:
        why = "its samples are too few to hold some out"
        solution = LayerSolution(note=f"{layer.name}{NEAREST} {why}")
    else:
        note = ""
        if is_of_experts(layer.node):
            training, note = without_rare_experts(layer.name, training)
        evidence = RowEvidence.of(layer.matrix.cpu(), training, holdout)
        solution = solve_from(evidence, layer, plan, {step: solve})
        solution = replace(solution, note=solution.note or note)
    return replace(solution, bias=corrected_bias(layer, samples.means, solution.weight))
