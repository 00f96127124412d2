"""The parts of a network that steps train one by one: those of the recipe, or the blocks.

Where a block ends is a matter of memory; in which part a layer is trained decides what its weights
become. So the parts are recorded in the recipe of the file, and a conversion with that recipe has
them whatever its memory is. A part is converted as one block.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import fx

from qtool.algorithms.pipeline import Scope
from qtool.algorithms.registry import select_block_steps
from qtool.core import formats
from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.graph import FloatGraph
from qtool.core.graph.cut import Block, cut, cut_at, weight_bytes
from qtool.core.remedies import CallEdit
from qtool.planning.recipe import Recipe


def trains(recipe: Recipe) -> bool:
    """Return whether a step of a recipe trains parts of the network."""
    return any(step.scope is Scope.PART for step in select_block_steps(recipe)[0])


def cut_into_parts(
    whole: FloatGraph, recipe: Recipe, block: int, alone: Collection[fx.Node]
) -> tuple[list[Block], Recipe]:
    """Cut a graph into blocks; return them, and the recipe with the parts that are trained.

    Args:
        whole: the graph.
        recipe: recipe of the conversion.
        block: bytes of float32 weights of a block.
        alone: calls that are a block each, unless the recipe has parts.

    Raises:
        CaptureError: a size depends on values.
        PlanError: the parts of the recipe are not those of the model, or larger than a block.
    """
    if not trains(recipe):
        return cut(whole, block, alone), recipe
    if not recipe.parts:
        blocks = cut(whole, block, alone)
        return blocks, replace(recipe, parts=tuple(G.name_of(b.calls[0]) for b in blocks))
    try:
        blocks = cut_at(whole, recipe.parts)
    except LookupError as error:
        raise PlanError(
            f"the parts of the recipe begin with '{error.args[0]}', which is not where a part of "
            "this model can begin: the first one begins with its first node, the others follow in "
            "order",
            CallEdit("leave out parts"),
        ) from error
    for part in blocks:
        size = sum(map(weight_bytes, part.calls))
        if size > block and len(part.calls) > 1:
            raise PlanError(
                f"the part {part.name} of the recipe has {formats.size(size)} of float32 weights, "
                f"more than a block of {formats.size(block)}",
                CallEdit("give more memory"),
                CallEdit("leave out parts"),
            )
    return blocks, recipe
