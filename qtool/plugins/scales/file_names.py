"""The names that the tensors of a captured graph have in its ONNX file.

Passes fold and rewrite nodes, so a tensor is looked up by its values: on a few samples it equals
the tensor of the file but for the rounding of floats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.frontends.onnx.onnx_module import OnnxModule

_TOLERANCE = (
    1e-3  # of the largest value; folded BatchNorms and other orders of sums round otherwise
)
_WEIGHT = 1  # position of the weight among the inputs of a layer


@dataclass(frozen=True, eq=False)
class FileNames:
    """Names in a file.

    Attributes:
        tensors: node of the graph -> the tensors of the file that equal its result, its own first.
        weights: layer -> name of its weight in the file.
        known: all names of tensors and layers of the file.
    """

    tensors: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, str]
    known: frozenset[str]


def file_names(model: OnnxModule, graph: FloatGraph, batch: Batch) -> FileNames:
    """Return the names of a graph's tensors in its file.

    Args:
        model: the file.
        graph: captured from it, after the passes of a target.
        batch: a few samples, bound to the graph.
    """
    values = model.observe(graph.tensors_of(batch))
    floats = {
        n: v for n, v in values.items() if isinstance(v, torch.Tensor) and v.is_floating_point()
    }
    by_shape: dict[torch.Size, list[str]] = defaultdict(list)
    for name, value in floats.items():
        by_shape[value.shape].append(name)
    executor = Executor(graph, single_run=True)
    results = executor.run(batch, frozenset())
    outputs = {n.label: n.outputs[0] for n in model.nodes if n.outputs}
    tensors = {}
    for node, index in executor.indices.items():
        result = results[index] if index not in executor.constants else None
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            continue
        equal = [n for n in by_shape[result.shape] if _equal(result, floats[n])]
        own = outputs.get(node, node)
        tensors[node] = tuple(sorted(equal, key=lambda name: name != own))
    weights = {n.label: n.inputs[_WEIGHT] for n in model.nodes if len(n.inputs) > _WEIGHT}
    known = {*values, *outputs, *model.constants}
    return FileNames(tensors, weights, frozenset(known))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.numel():
        return False
    one, other = one.double(), other.double()
    return bool((one - other).abs().max() <= _TOLERANCE * other.abs().max())
