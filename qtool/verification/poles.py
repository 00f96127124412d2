"""Divisions by what quantization may take through zero.

Beside a pole noise is amplified without bound, and whether a sample meets one is chance: an output
may keep 30 dB on it and 2 dB on the next. So it is looked at where the division is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool import graph as G
from qtool.data import Batch
from qtool.graph import FloatGraph
from qtool.graph.run import Executor

__all__ = ["near_poles"]

TRIED = 8  # samples
aten = torch.ops.aten
_DIVISORS: dict[Any, int] = {aten.div.Tensor: 1, aten.reciprocal.default: 0, aten.rsqrt.default: 0}


def near_poles(graph: FloatGraph, batch: Batch) -> tuple[str, ...]:
    """The divisions whose divisor is quantized, or made of what is, and has values of both signs or
    values no larger than their noise.

    Args:
        graph: with its points. batch: bound to its inputs; a few samples of it are used.
    """
    made = [(node, d) for node in G.calls(graph.module.graph) if (d := _divisor(node)) is not None]
    if not made:
        return ()
    run = Executor(graph)
    few = graph.head(batch, TRIED)
    real, coded = run.run(few, frozenset()), run.run(few, run.points)
    found = []
    for node, divisor in made:
        at = run.numbers[G.name_of(divisor)]
        if _meets_zero(real[at], coded[at]):
            found.append(G.name_of(node))
    return tuple(found)


def _divisor(node: fx.Node) -> fx.Node | None:
    """What a node divides by, where it is computed."""
    place = _DIVISORS.get(node.target)
    if node.target is aten.pow.Tensor_Scalar and isinstance(node.args[1], int | float):
        place = 0 if node.args[1] < 0 else None
    found = None if place is None else node.args[place]
    return found if isinstance(found, fx.Node) and found.op.startswith("call") else None


def _meets_zero(real: torch.Tensor, coded: torch.Tensor) -> bool:
    if not real.is_floating_point() or real.shape != coded.shape or not real.numel():
        return False
    noise = (coded - real).abs()
    if not bool((noise > 0).any()):
        return False
    both = bool((real > 0).any() and (real < 0).any())
    return both or bool(((noise > 0) & (real.abs() <= noise)).any())
