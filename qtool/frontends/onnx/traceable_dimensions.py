"""The sets of dynamic dimensions to trace an ONNX file with, where not all can be traced."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

import torch

Dynamic = Mapping[str, Mapping[int, str]]
MAX_NAMES = 4
"""Dynamic dimensions from which on only single ones are left out, or all: each set is a trace."""


def fewer_dimensions(tensors: Sequence[torch.Tensor], wanted: Dynamic) -> Iterator[Dynamic]:
    """Yield sets of dynamic dimensions, each smaller than `wanted`, the largest first.

    First those of size 0 and 1 in the example are left out, which torch.export fixes (a single
    sample is doubled); then as few others as possible, all inputs' dimensions of one name
    together; first dimensions last.

    Args:
        tensors: the example, in the order of the inputs.
        wanted: input -> {dimension: name}.
    """
    single = all(t.shape[0] == 1 for t in tensors if t.dim())
    traceable = {
        name: {
            axis: dim
            for axis, dim in wanted[name].items()
            if tensor.shape[axis] > 1 or (axis == 0 and single)
        }
        for name, tensor in zip(wanted, tensors, strict=True)
    }
    first = {dim for axes in traceable.values() for axis, dim in axes.items() if axis == 0}
    others = list(dict.fromkeys(d for axes in traceable.values() for d in axes.values()))
    others = [dim for dim in others if dim not in first]
    counts = range(len(others) + 1) if len(others) <= MAX_NAMES else (0, 1, len(others))
    dropped = [set(names) for count in counts for names in combinations(others, count)]
    for names in (*dropped, first, {*first, *others}):
        sizes = _without(traceable, names)
        if sizes != wanted:
            yield sizes


def _without(dynamic: Dynamic, names: Collection[str]) -> Dynamic:
    return {
        name: {axis: dim for axis, dim in axes.items() if dim not in names}
        for name, axes in dynamic.items()
    }
