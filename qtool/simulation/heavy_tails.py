"""Tensors after exponential growth, whose range a few samples decide.

The largest values of an ordinary tensor are similar in all samples. After an exponential they may
differ so much that the next sample lies far outside of the calibrated range, where it is clipped:
the outputs have 25 dB on the calibration sample and none on new data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.graph.file_parts import part_kind

FEWEST, SHARE, HEAVY = 8, 8, 0.5
"""Least number of samples; share of the largest ones (1/8, at least 4) for Hill's estimate of the
tail index; limit of the index, from which on the variance is infinite. Data and activations of
trained networks had 0.05 to 0.66, exponentials of them 0.7 to 1.3."""
aten = torch.ops.aten
_FAST = 3  # degree from which on growth counts as exponential
_EXPONENTIAL = frozenset(
    [
        *(aten.exp.default, aten.exp2.default, aten.expm1.default, aten.sinh.default),
        *(aten.cosh.default, aten.prod.dim_int, aten.prod.default, aten.pow.Tensor_Tensor),
    ]
)
_KEPT = frozenset(["Cosh", "Det", "Exp", "Pow", "ReduceProd", "Sinh"])
_PRODUCTS = frozenset(
    [aten.mul.Tensor, aten.matmul.default, aten.bmm.default, aten.mm.default, aten.einsum.default]
)
_BOUNDED = frozenset(
    [
        *(aten.sigmoid.default, aten.tanh.default, aten.softmax.int, aten.erf.default),
        *(aten.layer_norm.default, aten.sin.default, aten.cos.default, aten.hardsigmoid.default),
    ]
)


def heavy_tails(graph: FloatGraph, batch: Batch) -> tuple[str, ...]:
    """Return the quantized tensors and outputs after exponential growth that have heavy tails.

    Args:
        graph: graph with its quantization points.
        batch: bound to the inputs of the graph.
    """
    degrees, names = _degrees(graph.module), dict[str, str]()
    for node in graph.module.graph.find_nodes(op="call_module"):
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and degrees[source] >= _FAST:
            names[G.name_of(source)] = G.name_of(source)
    (result,) = graph.module.graph.find_nodes(op="output")
    leaves = pytree.tree_leaves(result.args[0])
    for name, node in zip(graph.outputs, leaves, strict=True):
        if isinstance(node, fx.Node) and degrees[node] >= _FAST:
            names[G.name_of(node)] = name
    if not names or batch.size < FEWEST:
        return ()
    values = dict(Executor(graph, single_run=True).stream(batch, frozenset(), names))
    heavy = (n for n in names if _tail_index(values.get(n), batch.size) > HEAVY)
    return tuple(names[n] for n in heavy)


def _degrees(module: fx.GraphModule) -> Mapping[fx.Node, float]:
    """Return how fast each value grows with the inputs and codes that it depends on.

    A sum of products of three values has degree 3, an exponential an infinite one.
    """
    degree: dict[fx.Node, float] = {}
    for node in module.graph.nodes:
        read = [degree[n] for n in node.all_input_nodes]
        degree[node] = 0.0 if node.op == "get_attr" else max(read, default=1.0)
        if node.op != "call_function":
            degree[node] = min(degree[node], 1.0)
        elif node.target in _EXPONENTIAL or part_kind(node) in _KEPT:
            degree[node] *= torch.inf if degree[node] else 0.0
        elif node.target is aten.pow.Tensor_Scalar and isinstance(node.args[1], int | float):
            degree[node] *= max(node.args[1], 0)
        elif node.target in _PRODUCTS:
            degree[node] = sum(degree[a] for a in _arguments(node))
        elif part_kind(node) == "ReduceSumSquare":
            degree[node] *= 2
        elif node.target in _BOUNDED:
            degree[node] = min(degree[node], 1.0)
    return degree


def _arguments(node: fx.Node) -> list[fx.Node]:
    """Return all arguments; a node that is used twice counts twice."""
    return [a for a in pytree.tree_leaves(node.args) if isinstance(a, fx.Node)]


def _tail_index(value: Any, samples: int) -> float:
    if not isinstance(value, torch.Tensor) or not value.dim() or len(value) != samples:
        return 0.0
    if not value.numel() or not value.is_floating_point():
        return 0.0
    largest = value.detach().abs().reshape(samples, -1).amax(1).double().sort(descending=True)[0]
    few = max(4, samples // SHARE)
    if not bool(largest.isfinite().all()) or not float(largest[few]) > 0:
        return 0.0
    return float((largest[:few] / largest[few]).log().mean())
