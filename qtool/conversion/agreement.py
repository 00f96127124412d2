"""Scales for which ONNX Runtime's kernels give the same codes on every CPU.

Sums, products and global averages of codes are computed with fused multiply-adds on x86 with AVX2,
with other roundings on SSE4.1 and in WebAssembly, and in fixed point on ARM (mlas/lib/qladd.cpp,
qlmul.cpp, qlgavgpool.cpp). The forms differ in a few of all combinations of codes, those whose
result lies next to the border between two codes. A change of the output's scale by some millionths
moves the borders away. Whether the codes agree is not estimated: every profile computes them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import fx

from qtool import graph as G
from qtool.conversion.align import output_point
from qtool.conversion.rescaling import rescaled
from qtool.kernels import Profile, profile
from qtool.plan import Execution, QuantPlan
from qtool.targets import target
from qtool.types import Observed, QuantParams

__all__ = ["agreeing"]

STEP = 2.0**-18
TRIES = 400
PASSES = 4

AllCodes = Callable[[Profile, Sequence[QuantParams], QuantParams], torch.Tensor]
"""The codes that a profile gives for all combinations of input codes, by the parameters of the
inputs and of the output."""


@dataclass(frozen=True)
class _Operator:
    """An operator whose formula differs between CPUs: its kernel's key and its points."""

    name: str
    key: str
    codes: AllCodes
    inputs: tuple[str, ...]
    output: str


def _of_pairs(
    key: str, chosen: Profile, inputs: Sequence[QuantParams], output: QuantParams
) -> torch.Tensor:
    """Of both orders of the operands: the runtime may exchange them."""
    left, right = (_every_code(p) for p in inputs)
    grid = left.reshape(-1, 1).expand(-1, len(right)), right.expand(len(left), -1)
    one, other = (t.contiguous() for t in grid)
    first, second = inputs
    return torch.stack(
        [
            chosen.bind(key, first, second, output)(one, other),
            chosen.bind(key, second, first, output)(other, one),
        ]
    )


def _of_sums(
    key: str, cells: int, chosen: Profile, inputs: Sequence[QuantParams], output: QuantParams
) -> torch.Tensor:
    """Of every sum of the codes of so many cells."""
    lowest, highest = (end * cells for end in (inputs[0].qtype.qmin, inputs[0].qtype.qmax))
    return chosen.bind(key, *inputs, output, cells)(torch.arange(lowest, highest + 1))


def _pair(key: str, node: fx.Node) -> tuple[str, AllCodes]:  # the table's signature
    return key, partial(_of_pairs, key)


def _average(_: str, node: fx.Node) -> tuple[str, AllCodes]:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    key, cells = "global_average_pool_sums", prod(G.hint(s) for s in G.shape(source)[2:])
    return key, partial(_of_sums, key, cells)


_KERNELS = {"add": _pair, "mul": _pair, "global_average_pool": _average}
"""Operators whose formulas differ -> the profiles' kernel to compare, and all of its codes."""


def agreeing(
    graph: fx.Graph, plan: QuantPlan, params: Mapping[str, QuantParams]
) -> tuple[dict[str, QuantParams], tuple[str, ...]]:
    """Parameters with which all profiles of the plan's target give the same codes.

    Args:
        graph: the float graph of the plan.
        params: of every point of the plan.

    Returns:
        The parameters, and a sentence for each operator whose codes still differ.
    """
    profiles = [profile(name) for name in target(plan.target).agreement]
    result, operators = dict(params), tuple(_operators(graph, plan))
    if not profiles:
        return result, ()
    for _ in range(PASSES):
        differing = [o for o in operators if _differing(o, profiles, result)]
        if not differing:
            return result, ()
        for operator in differing:
            result = _moved(operator, operators, profiles, plan, result)
    notes = (
        f"{o.name}: some combinations of codes give another code on other CPUs, by one"
        for o in operators
        if _differing(o, profiles, result)
    )
    return result, tuple(notes)


def _operators(graph: fx.Graph, plan: QuantPlan) -> Iterator[_Operator]:
    nodes = {G.name_of(n): n for n in graph.nodes}
    for decision in plan.nodes:
        if decision.op not in _KERNELS or decision.execution is not Execution.INTEGER:
            continue
        output = output_point(plan, nodes, decision)
        if output is not None:
            key, codes = _KERNELS[decision.op](decision.op, nodes[decision.node])
            yield _Operator(decision.node, key, codes, decision.inputs, output)


def _differing(
    operator: _Operator, profiles: Sequence[Profile], params: Mapping[str, QuantParams]
) -> bool:
    inputs = [params[name] for name in operator.inputs]
    distinct = {p.binders[operator.key]: p for p in profiles}.values()
    first, *others = (operator.codes(p, inputs, params[operator.output]) for p in distinct)
    return any(not torch.equal(first, codes) for codes in others)


def _moved(
    operator: _Operator,
    operators: Sequence[_Operator],
    profiles: Sequence[Profile],
    plan: QuantPlan,
    params: dict[str, QuantParams],
) -> dict[str, QuantParams]:
    """Parameters with the operator's output scale moved as little as makes its codes agree, where
    that keeps the agreement of the operators before it; else as they are."""
    for name in (operator.output, *operator.inputs):
        root = plan.root(name)
        if not isinstance(plan.point(root).spec, Observed):
            continue
        before = [o for o in operators[: operators.index(operator)] if _reads(o, plan, root)]
        for i in range(1, TRIES):
            factor = 1 + (i + 1) // 2 * (STEP if i % 2 else -STEP)
            moved = rescaled(plan, params, {root: factor})
            if not any(_differing(o, profiles, moved) for o in (operator, *before)):
                return moved
    return params


def _reads(operator: _Operator, plan: QuantPlan, root: str) -> bool:
    return any(plan.root(name) == root for name in (*operator.inputs, operator.output))


def _every_code(params: QuantParams) -> torch.Tensor:
    qtype = params.qtype
    return torch.arange(qtype.qmin, qtype.qmax + 1).to(qtype.torch_dtype)
