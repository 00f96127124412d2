"""What a file is traced with: sizes of an example, branches on sizes, and dynamic dimensions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

import torch

from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.frontends.onnx.onnx_module import OnnxModule
from qtool.frontends.onnx.runtime_values import run_file
from qtool.frontends.onnx.size_branches import SizeBranch

Dynamic = Mapping[str, Mapping[int, str]]
MAX_NAMES = 4
"""Dynamic dimensions from which on only single ones are left out, or all: each set is a trace."""


def without_ones(model: OnnxModule, batch: Batch, wanted: Dynamic) -> tuple[Batch, Dynamic]:
    """Return a batch whose dynamic dimensions have a size of 2 where it is 1, which torch.export
    would fix, and the names of the dynamic dimensions.

    Dimensions of one name, first ones, where the file does not take more; and where it takes a
    batch of 2 only if another dimension is 2 as well, that is the batch, too.
    """
    pairs = list(zip(model.inputs, batch.args, strict=True))
    ones = {n: [a for a in wanted.get(n, {}) if t.shape[a] == 1] for n, t in pairs}
    first = {wanted[n][0] for n, axes in ones.items() if 0 in axes}
    named = {n: [a for a in axes if wanted[n][a] in first] for n, axes in ones.items()}
    every, few = (_doubled(model, batch, axes) for axes in (ones, named))
    if every is None or few is not None or len(first) != 1:
        return every or few or batch, wanted
    (name,) = first
    return every, {n: {**d, **dict.fromkeys(ones[n], name)} for n, d in wanted.items()}


def _doubled(model: OnnxModule, batch: Batch, axes: Mapping[str, Sequence[int]]) -> Batch | None:
    """Return a batch with these dimensions of the inputs doubled; None if the file does not take
    it, or nothing is to double."""
    if model.external.arrays or not any(axes.values()):
        return None
    pairs = zip(axes.values(), batch.args, strict=True)
    tensors = [t.repeat([1 + (a in chosen) for a in range(t.dim())]) for chosen, t in pairs]
    try:
        run_file(model.model, {n: t.cpu().numpy() for n, t in zip(axes, tensors, strict=True)})
    except CaptureError:
        return None
    return Batch(tuple(tensors))


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


def with_branches(model: OnnxModule, batch: Batch) -> OnnxModule:
    """Return a module in which each If on sizes is the branch that a batch selects."""
    decisions: dict[str, tuple[SizeBranch, bool]] = {}
    seen: set[str] = set()
    while undecided := [b for b in model.branches if b.condition not in seen]:
        model.observe(batch.args, whole=False)
        seen |= {b.condition for b in undecided}
        values = [(b, b.decide_at(model.shapes, model.constants)) for b in undecided]
        decisions |= {b.condition: (b, value) for b, value in values if value is not None}
        path, size = model.path, model.file_bytes
        model = OnnxModule(
            model.model,
            model.external,
            model.qtool_fixed_inputs,
            tuple(decisions.values()),
            model.notes,
        ).eval()
        model.path, model.file_bytes = path, size
    return model
