"""The mode of a conversion without a chosen one."""

from __future__ import annotations

from typing import Any

from torch import fx

from qtool.core import graph as G
from qtool.core.argument_names import argument
from qtool.core.ops import macs, row_of
from qtool.planning.recipe import Recipe
from qtool.planning.targets import Target

STATIC = "static"
MOST = 0.5  # of the multiply-accumulates, in linear layers
_NORMS = ("layer_norm", "rms_norm")
_ATTENTION = ("_softmax", "softmax", "scaled_dot_product_attention")


def recipe_for(graph: fx.Graph, target: Target, recipe: Any = None, *options: Any) -> Recipe:
    """Return a recipe; its mode, if none is chosen, is the usual one of a graph.

    Args:
        graph: the graph in the forms of the target.
        target: the target.
        recipe: as for `Recipe.of`.
        options: mode, accuracy and steps, as for `Recipe.of`.

    Raises:
        FileError, PlanError: as for `Recipe.of`.
    """
    return Recipe.of(recipe, *options, default_mode=default_mode(graph, target))


def default_mode(graph: fx.Graph, target: Target) -> str:
    """Return the target's mode for transformers if a graph is one, else "static".

    A transformer has norms and attention, and most of its work is in linear layers.
    """
    nodes = list(G.calls(graph))
    names = {getattr(n.target, "__name__", "").partition(".")[0] for n in nodes}
    if target.transformers == STATIC or names.isdisjoint(_NORMS) or names.isdisjoint(_ATTENTION):
        return STATIC
    batch = G.captured_batch(graph)
    work = [(row_of(n), macs(n, batch) or 0) for n in nodes]
    linear = sum(count for row, count in work if row is not None and row.key == "linear")
    return target.transformers if linear > MOST * sum(count for _, count in work) else STATIC


def mode_notes(chosen: Recipe, plain: Recipe, target: Target) -> tuple[str, ...]:
    """Return a note where the mode of a recipe is the target's, for transformers or for all.

    Args:
        chosen: the recipe of a conversion, from `recipe_for`.
        plain: the same without the graph.
        target: the target.
    """
    if chosen.mode == plain.mode:
        return ()
    default = f"mode {chosen.mode}: the default for transformers on {target.name}"
    other = argument("--mode", STATIC)
    return (f"{default}, more accurate and not slower there than {other}",)
