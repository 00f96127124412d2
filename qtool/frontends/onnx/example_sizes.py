"""What a file becomes with the sizes of an example: dimensions of 1, and branches on sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.frontends.onnx.onnx_module import OnnxModule
from qtool.frontends.onnx.runtime_values import run_file
from qtool.frontends.onnx.size_branches import SizeBranch

Dynamic = Mapping[str, Mapping[int, str]]


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
