"""What a file is traced with: sizes of an example, branches on sizes, and dynamic dimensions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from qtool.backends.onnx.subgraph import TORCH_TYPES, tensor_of
from qtool.core.data import Batch
from qtool.core.data.fixed_inputs import FixedInputs
from qtool.core.data.noise_inputs import Noise
from qtool.core.errors import CaptureError
from qtool.core.remedies import Argument, DataEdit, ModelEdit, OtherFile, Remedy
from qtool.core.shape_remedies import shape_remedies, type_remedies
from qtool.core.types import Array
from qtool.frontends.onnx.onnx_module import OnnxModule
from qtool.frontends.onnx.open_dimensions import open_dimensions
from qtool.frontends.onnx.runtime_values import run_file
from qtool.frontends.onnx.size_branches import SizeBranch

Dynamic = Mapping[str, Mapping[int, str]]
MAX_NAMES = 4
"""Dynamic dimensions from which on only single ones are left out, or all: each set is a trace."""
_INITIALIZERS_ARE_INPUTS = 3  # up to this version of the format


def in_order(model: OnnxModule, example: Batch) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a batch in the order of the file's inputs."""
    values = dict(zip(model.inputs, example.args, strict=False)) | example.kwargs
    if set(values) != set(model.inputs) or len(values) != len(example.args) + len(example.kwargs):
        missing = [name for name in model.inputs if name not in values]
        fixed = tuple(f"{n}=VALUE" for n in missing if values.keys() < set(model.inputs))
        raise CaptureError(
            f"the batch gives {', '.join(values) or 'nothing'}; the inputs of the file are "
            f"{', '.join(model.inputs)}",
            *([Argument("--fix", fixed, "make those constants with {}")] if fixed else []),
        )
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            kind = type(value).__name__
            raise CaptureError(f"input '{name}' is a {kind} in the batch, not a tensor")
    return tuple(values[n] for n in model.inputs)


def check_input(
    name: str, kind: onnx.TypeProto.Tensor, tensor: torch.Tensor, dynamic: Mapping[str, Any]
) -> None:
    wanted = str(np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)))
    names = open_dimensions(kind)
    sizes = [names.get(axis, d.dim_value) for axis, d in enumerate(kind.shape.dim)]
    fits = not kind.HasField("shape") or (
        len(sizes) == tensor.dim()
        and all(
            isinstance(s, str) or s == n or axis in dynamic.get(name, {})
            for axis, (s, n) in enumerate(zip(sizes, tensor.shape, strict=True))
        )
    )
    if not fits or tensor.dtype != TORCH_TYPES[kind.elem_type]:
        raise CaptureError(
            f"input '{name}' of the file is {wanted}[{', '.join(map(str, sizes))}], the batch "
            f"gives {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}",
            *batch_remedies(sizes, wanted, tensor),
        )


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


def with_own_sizes(model: OnnxModule, batch: Batch, own: Batch, dynamic: Dynamic) -> Batch:
    """Return a doubled batch with its own sizes in the dimensions that are not dynamic."""
    tensors = []
    for name, doubled, tensor in zip(model.inputs, batch.args, own.args, strict=True):
        for axis in set(range(tensor.dim())) - dynamic.get(name, {}).keys():
            doubled = doubled.narrow(axis, 0, tensor.shape[axis])
        tensors.append(doubled)
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
        model = model.again(tuple(decisions.values()), Noise.of(model))
    return model


DYNAMIC_BATCH = OtherFile("export the file with a dynamic batch")


def for_files(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Return remedies for a user who has a file, and no code to edit."""
    own: list[Remedy] = [r for r in remedies if not isinstance(r, ModelEdit | OtherFile)]
    if len(own) < len(remedies):
        own.append(OtherFile("give the PyTorch model that the file was exported from"))
    return own


def batch_remedies(sizes: Sequence[int | str], wanted: str, tensor: torch.Tensor) -> list[Remedy]:
    """Return what to do about a batch of another type or shape: it may only have another number of
    samples.

    Args:
        sizes, wanted: shape and dtype of the input.
        tensor: what the batch has for it.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != wanted and len(sizes) == tensor.dim():
        return [*type_remedies(wanted, dtype, tensor)]
    only = len(sizes) == tensor.dim() and sizes and isinstance(sizes[0], int)
    if only and all(
        isinstance(s, str) or s == n for s, n in zip(sizes[1:], tensor.shape[1:], strict=True)
    ):
        return [DataEdit(f"give at least {sizes[0]} samples"), DYNAMIC_BATCH]
    return [*shape_remedies(sizes, tensor.shape)] or [
        DataEdit("give batches of that type and shape")
    ]


# Inputs of a file that become constants: a sampling rate, a flag, a number of tokens.
#
# What depends on them alone is folded, so that an If on one of them becomes the nodes of one
# branch.


def fix_inputs(model: onnx.ModelProto, values: Mapping[str, Any]) -> FixedInputs:
    """Turn inputs of a file into constants, in place; return these.

    Args:
        model: the file.
        values: input -> a number, or an array that broadcasts to its shape; an open dimension has
            the array's size, or 1.

    Raises:
        CaptureError: there is no such input, or the value has another type or shape.
    """
    stored = {i.name for i in model.graph.initializer}
    inputs = {i.name: i for i in model.graph.input if i.name not in stored}
    fixed: dict[str, Array] = {}
    for name, value in values.items():
        if name not in inputs:
            raise CaptureError(
                f"there is no input '{name}' to fix; the inputs are {', '.join(inputs)}"
            )
        fixed[name] = _constant(name, inputs[name].type.tensor_type, value)
        model.graph.initializer.append(numpy_helper.from_array(fixed[name], name))
        if model.ir_version > _INITIALIZERS_ARE_INPUTS:
            model.graph.input.remove(inputs[name])
    return FixedInputs({n: tensor_of(a) for n, a in fixed.items()}, tuple(inputs))


def _constant(name: str, kind: onnx.TypeProto.Tensor, value: Any) -> Array:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    array = np.asarray(value)
    whole = dtype.kind in "biu"  # a fraction is rounded to the float type of the input
    if array.dtype.kind not in "biuf" or (whole and not np.array_equal(array.astype(dtype), array)):
        raise CaptureError(f"input '{name}' is {dtype}, which cannot be {value!r}")
    dims = kind.shape.dim
    sizes = [max(0, d.dim_value) for d in dims]
    own = (1,) * (len(sizes) - array.ndim) + array.shape
    wanted = [size or other for size, other in zip(sizes, own, strict=False)]
    try:
        shaped = np.broadcast_to(array, wanted if kind.HasField("shape") else array.shape)
    except ValueError as error:
        raise CaptureError(
            f"input '{name}' has the shape {wanted}, the value to fix it to {list(array.shape)}"
        ) from error
    return np.array(shaped, dtype)
