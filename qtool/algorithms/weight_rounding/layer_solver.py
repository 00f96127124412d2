"""The layer solver: rounds the weights of one layer, from its inputs and targets.

Blocks of columns are solved in order. The weights of a block first move towards the target of the
layer, damped by the gain on held-out rows, since most of the remaining error is noise; then they
are rounded with error feedback (gptq.py). What is left of the error goes to the next blocks.

The solver reads evidence: rows of calibration samples in memory (`layer_step.RowEvidence`), or
moments that were accumulated over all data (`blockwise.layer_moments`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import fx

from qtool.algorithms.bias_correction import corrected_bias
from qtool.algorithms.exclusive_layers import Layer
from qtool.algorithms.layer_rows import (
    as_matrix,
    as_weight,
    is_of_experts,
    is_pruned,
    without_rare_experts,
)
from qtool.algorithms.layer_solution import LayerSolution
from qtool.algorithms.weight_rounding.gptq import (
    Grid,
    InverseHessian,
    PairBounds,
    correct_weight,
    damping_for,
    hessian,
    invert_hessian,
    round_columns,
)
from qtool.algorithms.weight_rounding.layer_samples import LayerSamples
from qtool.core import graph as G
from qtool.core.graph.torch_ops import groups_of
from qtool.core.quant_params import QuantParams
from qtool.planning.plan import QuantPlan
from qtool.planning.targets import target
from qtool.planning.targets.saturation import pair_partners

COLUMNS = 1024  # per block of GPTQ, with error feedback inside it
NEAREST = ".weight: rounded to nearest, since"
"""Of a note, between the name of a layer and a reason."""


class LayerEvidence(Protocol):
    """What is known of a layer X W^T with inputs X and targets Y.

    R = Y - X W^T is the residual of the float weights W. Groups of a convolution are separate.
    """

    @property
    def holdout(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Held-out rows of X [groups, rows, in] and R [groups, rows, out]."""

    @property
    def residual_moment(self) -> torch.Tensor:
        """R^T X over the training rows, [groups, out, in]."""

    def inverse(self, start: int, end: int) -> InverseHessian:
        """Return the inverse of the damped Hessian X^T X of columns `start` to `end`.

        Raises:
            torch.linalg.LinAlgError: the Hessian is singular.
        """

    def effect(self, change: torch.Tensor, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two factors of change X[start:end]^T X[end:] over the training rows, which a
        change [groups, out, end - start] of the weights adds to the moment of later columns."""


@dataclass(frozen=True, eq=False)
class LayerProblem:
    """A layer, or some of its outputs, whose weights are to be put on their grid.

    Attributes:
        node: the layer.
        weight: float weights as [groups, out, in].
        params: parameters of the weight.
        shape: shape of the weight in the graph.
        plan: its target may limit pairs of weights.
        evidence: what is known of inputs and targets.
        zeros: pruned weights, which stay zero: bool [groups, out, in]; None without any.
    """

    node: fx.Node
    weight: torch.Tensor
    params: QuantParams
    shape: torch.Size
    plan: QuantPlan
    evidence: LayerEvidence
    zeros: torch.Tensor | None = None

    @property
    def nearest(self) -> torch.Tensor:
        """The weights rounded to nearest, of `shape`."""
        return self.params.round_trip(as_weight(self.node, self.weight, self.shape))

    def error(self, weight: torch.Tensor) -> float:
        """Return the squared error of weights of `shape` on the held-out rows."""
        return float(self.group_errors(weight).sum())

    def group_errors(self, weight: torch.Tensor) -> torch.Tensor:
        """Return that error for each group, [groups]."""
        x, residual = self.evidence.holdout
        change = as_matrix(self.node, weight) - self.weight
        errors: torch.Tensor = torch.baddbmm(residual, x, change.mT, alpha=-1).square_().sum((1, 2))
        return errors

    def better_experts(self, weight: torch.Tensor) -> torch.Tensor:
        """Return weights with the nearest codes for experts that are not better, judged alone."""
        if not is_of_experts(self.node):
            return weight
        worse = self.group_errors(weight) >= self.group_errors(self.nearest)
        nearest, proposed = (as_matrix(self.node, t) for t in (self.nearest, weight))
        chosen = torch.where(worse[:, None, None], nearest, proposed)
        return as_weight(self.node, chosen, self.shape)

    def pruned(self, weight: torch.Tensor) -> torch.Tensor:
        """Return weights of `shape` with the zeros of the pruned ones."""
        if self.zeros is None:
            return weight
        return weight.masked_fill(as_weight(self.node, self.zeros, self.shape), 0)


LayerSolver = Callable[[LayerProblem], torch.Tensor | None]
"""Proposes weights on the grid, of the problem's shape; None where it has nothing to propose. It
raises torch.linalg.LinAlgError where the Hessian is singular."""


def best_solution(
    problem: LayerProblem, solvers: Mapping[str, LayerSolver]
) -> tuple[str, torch.Tensor] | None:
    """Return the weights of least error on held-out rows, and the name of their solver.

    None where rounding to nearest is as good. Without held-out rows the last proposal is taken.

    Raises:
        torch.linalg.LinAlgError: the Hessian is singular.
    """
    best, judged = None, problem.evidence.holdout[0].shape[1] > 0
    error = problem.error(problem.nearest) if judged else 0.0
    for name, solve in solvers.items():
        if (proposed := solve(problem)) is None:
            continue
        proposed = problem.pruned(proposed)
        if not judged:
            best = name, proposed
            continue
        proposed = problem.better_experts(proposed)
        if (proposed_error := problem.error(proposed)) < error:
            best, error = (name, proposed), proposed_error
    return best


def solve_from(
    evidence: LayerEvidence,
    layer: Layer,
    plan: QuantPlan,
    solvers: Mapping[str, LayerSolver],
    rows: slice | None = None,
) -> LayerSolution:
    """Return the weights of a layer by `best_solution`, with a note where its Hessian is singular.

    rows: the outputs to solve; see `Layer.part`.
    """
    part = layer.part(rows)
    matrix, shape = part.matrix.cpu(), part.weight.shape
    zeros = matrix == 0 if is_pruned(layer.weight, layer.node) else None
    problem = LayerProblem(layer.node, matrix, part.weight_params, shape, plan, evidence, zeros)
    try:
        best = best_solution(problem, solvers)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not declare it
        return LayerSolution(note=f"{layer.name}{NEAREST} the Hessian of its inputs is singular")
    return LayerSolution() if best is None else LayerSolution(best[1], steps=frozenset({best[0]}))


def solve_layer(problem: LayerProblem) -> torch.Tensor:
    """Return weights that are rounded with error feedback (GPTQ), towards the target of the layer.

    Raises:
        torch.linalg.LinAlgError: the Hessian is singular.
    """
    node, weight, params, shape = problem.node, problem.weight, problem.params, problem.shape
    evidence = problem.evidence
    scale, zero = (
        as_matrix(node, params.along(t, shape).expand(shape)).to(weight.dtype)
        for t in (params.scale, params.zero_point)
    )
    levels = params.qtype.qmin, params.qtype.qmax
    pairs = _pair_bounds(problem)
    x, residual = evidence.holdout
    moment, inputs, rounded = evidence.residual_moment, weight.shape[-1], torch.empty_like(weight)
    for start in range(0, inputs, COLUMNS):
        block = slice(start, min(start + COLUMNS, inputs))
        width = block.stop - start
        inverse, old = evidence.inverse(start, block.stop), weight[:, :, block]
        correction = correct_weight(old, moment[:, :, :width], inverse) - old
        effect = x[:, :, block] @ correction.mT
        gain = (residual * effect).sum() / effect.square().sum().clamp(min=1e-30)
        own = None if problem.zeros is None else problem.zeros[:, :, block]
        grid = Grid(scale[:, :, block], zero[:, :, block], *levels, pairs, start, own)
        rounded[:, :, block] = round_columns(old + gain.clamp(0, 1) * correction, inverse, grid)
        if block.stop == inputs:
            break
        change = rounded[:, :, block] - old
        residual = torch.baddbmm(residual, x[:, :, block], change.mT, alpha=-1)
        moment = moment[:, :, width:]  # of the columns that are not rounded yet
        moment = torch.baddbmm(moment, *evidence.effect(change, start), alpha=-1)
    return as_weight(node, rounded, shape)


def _pair_bounds(problem: LayerProblem) -> PairBounds | None:
    """Return bounds on the codes of a layer's weights, or None where no pair can saturate."""
    node, plan, qtype = problem.node, problem.plan, problem.params.qtype
    limit, decision = target(plan.target).saturation_limit, plan.decision(G.name_of(node))
    if limit is None or decision is None or not decision.computes_on_codes:
        return None
    if 2 * max(-qtype.qmin, qtype.qmax) <= limit:
        return None
    partners = pair_partners(problem.shape, groups_of(node))
    return PairBounds(problem.weight.shape[:2], partners, qtype.qmin, qtype.qmax, limit)


# The step `gptq` rounds weights for the results of their layers, not each to its nearest code.
# Layer by layer (`layer_reconstruction`), the weights first move towards the target of the layer,
# as far as held-out samples improve, and are then rounded with error feedback. The rounded
# weights are kept if they give smaller errors on held-out samples than rounding to nearest. The
# bias then compensates what remains of the mean error (`bias_correction`). Rows of tokens are
# weighted by their effect on the outputs (`token_weights`). AdaRound (Nagel et al. 2020)
# minimises the same layer-wise error by learning for each weight whether it is rounded up or
# down.


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
            squares = hessian(self.inputs[:, :, start:end])
        else:
            squares = self.squares[:, start:end, start:end]
        return invert_hessian(squares, damping_for(self.inputs.shape[1], end - start))

    def effect(self, change: torch.Tensor, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, width = change.shape[1:]
        if self.squares is not None:
            return change, self.squares[:, start : start + width, start + width :]
        _, own, later = self.inputs.tensor_split((start, start + width), dim=2)
        rows, rest = later.shape[1:]
        if outputs * rows * (width + rest) < width * rest * (rows + outputs):
            return (own @ change.mT).mT, later
        return change, own.mT @ later


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
