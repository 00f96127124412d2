"""Adjusts scales until ONNX Runtime's kernels return the same codes on every CPU.

Quantized additions, multiplications and activation functions are computed with fused multiply-adds
on x86 with AVX2, with more roundings on SSE4.1 and in WebAssembly, and sums in fixed point on ARM
(mlas/lib/qladd.cpp, qlmul.cpp, logistic.cpp). The results differ for a few combinations of codes,
those next to a rounding boundary. Changing the output scale by some millionths moves the
boundaries. Nothing is estimated: every profile computes all combinations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from qtool.backends.profiles import Profile, codes_of_pairs, codes_of_table, distinct, profile
from qtool.calibration.scale_alignment import output_point
from qtool.core import graph as G
from qtool.core.quant_params import QuantParams
from qtool.core.types import Derived, Observed
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.targets import target

SCALE_STEP = 2.0**-18
"""Smallest relative change of a scale: 4e-6."""

TRIES = 400
"""Changes to try, up and down in turn: at most 200 steps, less than 0.1 %."""

PASSES = 4
"""Passes over all operators: a shared scale may have to change again."""

_PAIRS = frozenset({"add", "mul"})
_TABLES = frozenset({"sigmoid", "silu", "gelu", "tanh", "hard_swish"})


@dataclass(frozen=True)
class _Operator:
    """An operator that CPUs compute differently.

    Attributes:
        name: name of the node.
        key: key of the kernel.
        inputs: names of points; a single one if both operands are the same tensor.
        output: name of a point.
    """

    name: str
    key: str
    inputs: tuple[str, ...]
    output: str

    def is_portable(self, profiles: Sequence[Profile], params: Mapping[str, QuantParams]) -> bool:
        """Return whether all profiles compute the same codes."""
        first, *others = (self._codes(p, params) for p in distinct(profiles, self.key))
        return all(torch.equal(first, codes) for codes in others)

    def _codes(self, profile: Profile, params: Mapping[str, QuantParams]) -> torch.Tensor:
        inputs, output = [params[name] for name in self.inputs], params[self.output]
        if self.key in _TABLES:
            return codes_of_table(profile, self.key, inputs[0], output)
        return codes_of_pairs(profile, self.key, inputs[0], inputs[-1], output)


def make_portable(
    graph: fx.Graph, plan: QuantPlan, params: Mapping[str, QuantParams]
) -> tuple[dict[str, QuantParams], tuple[str, ...]]:
    """Adjust scales until all profiles of the plan's target compute the same codes.

    Args:
        graph: the float graph of the plan.
        plan: its target names the profiles.
        params: point -> parameters.

    Returns:
        The parameters, and a note per operator whose codes still differ.
    """
    profiles = [profile(name) for name in target(plan.target).agreement]
    result, operators = dict(params), tuple(_operators(graph, plan))
    if not profiles:
        return result, ()
    for _ in range(PASSES):
        differing = [o for o in operators if not o.is_portable(profiles, result)]
        if not differing:
            return result, ()
        for operator in differing:
            result = _adjust_scale(operator, operators, profiles, plan, result)
    notes = (
        f"{o.name}: for some inputs the result differs by one code between CPUs"
        for o in operators
        if not o.is_portable(profiles, result)
    )
    return result, tuple(notes)


def _operators(graph: fx.Graph, plan: QuantPlan) -> Iterator[_Operator]:
    nodes = {G.name_of(n): n for n in graph.nodes}
    for decision in plan.nodes:
        known = decision.op in _PAIRS | _TABLES and decision.execution is Execution.INTEGER
        output = output_point(plan, nodes, decision) if known else None
        if output is not None:
            yield _Operator(decision.node, decision.op, decision.inputs, output)


def _adjust_scale(
    operator: _Operator,
    operators: Sequence[_Operator],
    profiles: Sequence[Profile],
    plan: QuantPlan,
    params: dict[str, QuantParams],
) -> dict[str, QuantParams]:
    """Return parameters with the smallest scale change that makes the operator portable.

    Operators before it stay portable; without such a change the parameters stay as they are.
    """
    for name in (operator.output, *operator.inputs):
        root = plan.root(name)
        if not isinstance(plan.point(root).spec, Observed):
            continue
        before = [o for o in operators[: operators.index(operator)] if _reads(o, plan, root)]
        for i in range(1, TRIES):
            factor = 1 + (i + 1) // 2 * (SCALE_STEP if i % 2 else -SCALE_STEP)
            rescaled = rescale_activations(plan, params, {root: factor})
            if all(o.is_portable(profiles, rescaled) for o in (operator, *before)):
                return rescaled
    return params


def _reads(operator: _Operator, plan: QuantPlan, root: str) -> bool:
    return any(plan.root(name) == root for name in (*operator.inputs, operator.output))


def rescale_activations(
    plan: QuantPlan, params: Mapping[str, QuantParams], factors: Mapping[str, float]
) -> dict[str, QuantParams]:
    """Return the parameters of all points after some scales are multiplied.

    Args:
        plan: the points.
        params: point -> parameters.
        factors: root point (`QuantPlan.root`) -> factor. Points that share its parameters get the
            same factor; a bias gets the product of its input's and weight's scales.
    """
    result = dict(params)
    for point in plan:
        factor = factors.get(plan.root(point.name))
        if factor is not None:
            old = params[point.name]
            result[point.name] = replace(old, scale=old.scale * factor)
    for point in plan:
        if isinstance(point.spec, Derived):
            scale = result[point.spec.input].scale * result[point.spec.weight].scale
            result[point.name] = replace(result[point.name], scale=scale)
    return result
