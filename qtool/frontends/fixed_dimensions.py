"""Fixes the dynamic dimensions that a captured graph does not follow.

torch.export follows the sizes of the example, and what it adds while it decomposes operators may
compute with one of them as a constant. The graph then declares a dynamic dimension and is right at
one size. So the graph is run at other sizes that the model takes: where it differs, the dimension
is fixed, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import describe
from qtool.core.graph.float_tolerance import largest_distance
from qtool.core.graph.other_sizes import (
    ROWS,
    OtherSize,
    Run,
    at_other_sizes,
    varying_dimensions,
)
from qtool.core.log import log_warning

MAX_DIFFERENCE = 0.01  # of the range; more is not rounding
Capture = Callable[[Mapping[str, Mapping[int, str]]], G.FloatGraph]
"""Captures with these dynamic dimensions: input -> {dimension: name}."""


def fix_dimensions(graph: G.FloatGraph, run: Run, capture: Capture) -> G.FloatGraph:
    """Return the graph, or one captured with fewer dynamic dimensions; each fixed one is logged and
    a sentence in `size_conditions`.

    Args:
        graph: captured from a model.
        run: the model: outputs on a batch bound to the graph, as tensors.
        capture: function that captures the model, with the dynamic dimensions that remain.
    """
    names = varying_dimensions(graph)
    reason = _difference(graph, run, names) if names else None
    if reason is None:
        return graph
    alone = {name: _difference(graph, run, [name]) for name in names if len(names) > 1}
    fixed = {name: why for name, why in alone.items() if why} or dict.fromkeys(names, reason)
    remaining = {
        i.name: {
            axis: size
            for axis, size in enumerate(i.shape)
            if isinstance(size, str) and size not in fixed
        }
        for i in graph.inputs
    }
    sentences = [s for n, why in fixed.items() for s in _sentences(graph, n, why)]
    for sentence in sentences:
        log_warning(sentence)
    smaller = fix_dimensions(capture(remaining), run, capture)
    smaller.size_conditions = (*sentences, *smaller.size_conditions)
    return smaller


def _difference(graph: G.FloatGraph, run: Run, names: Iterable[str]) -> str | None:
    """Return where and why a graph differs from its model at other sizes; None where it does not,
    and where it does at sizes that `size_conditions` exclude."""
    example = Batch(*graph.example)
    others = at_other_sizes(graph, example, run, names)
    usual = _tensors(run(graph.smaller(example, ROWS))) if others else []
    reasons = [_difference_at(graph, other, usual) for other in others]
    wrong = [f"at {other} {why}" for other, why in zip(others, reasons, strict=True) if why]
    if not wrong or (graph.size_conditions and len(wrong) < len(others)):
        return None
    conditions = (s.replace("the file is", "it is") for s in graph.size_conditions[:1])
    return "; ".join((wrong[0], *conditions))


def _difference_at(
    graph: G.FloatGraph, other: OtherSize, usual: Sequence[torch.Tensor]
) -> str | None:
    expected = _tensors(other.expected)
    runner = _Runner(graph.module)
    try:
        with torch.no_grad():
            results = runner.run(*graph.leaves_of(other.batch), enable_io_processing=False)
    except Exception as error:  # noqa: BLE001  # torch raises various types
        return f"{runner.node} of the captured graph fails ({describe(error)})"
    actual = _tensors(pytree.tree_leaves(results))
    index, distance = largest_distance(expected, actual, usual)
    if distance <= MAX_DIFFERENCE:
        return None
    how = "other values" if expected[index].shape == actual[index].shape else "another shape"
    return f"output '{graph.outputs[index]}' of the captured graph has {how}"


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [x for x in values if isinstance(x, torch.Tensor)]


class _Runner(fx.Interpreter):
    """Runs a graph node by node, since the module would check ranges.

    Attributes:
        node: name of the last one.
    """

    node = ""

    def run_node(self, n: fx.Node) -> Any:
        self.node = G.name_of(n)
        return super().run_node(n)


def _sentences(graph: G.FloatGraph, name: str, why: str) -> list[str]:
    sizes = zip(graph.inputs, graph.tensors_of(Batch(*graph.example)), strict=True)
    return [
        fixed_sentence(spec.name, axis, name, tensor.shape[axis], why)
        for spec, tensor in sizes
        for axis, size in enumerate(spec.shape)
        if size == name
    ]


def fixed_sentence(source: str, axis: int, name: str, size: int | str, why: str) -> str:
    """Return what is said of a dimension that was to be dynamic."""
    return f"dimension {axis} ({name}) of input '{source}' is fixed to {size}: {why}"
