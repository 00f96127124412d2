"""Prepares an example for torch.export: the arguments of one call of a module."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import wraps
from inspect import Parameter
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from qtool.core.data import Batch
from qtool.core.data.named_tensors import key_text
from qtool.core.errors import CaptureError
from qtool.core.remedies import CallEdit, ModelEdit, Omission

DOES_NOT_RUN = "the model does not run on the given inputs"

_NAMELESS = (Parameter.VAR_POSITIONAL, Parameter.POSITIONAL_ONLY)  # callers cannot name these


def check_dynamic(dynamic: Any) -> None:
    """Check that `dynamic` names dimensions of inputs.

    Raises:
        CaptureError: it has another form.
    """
    if dynamic is None:
        return
    valid = isinstance(dynamic, Mapping) and all(
        isinstance(name, str) and _is_named(sizes) for name, sizes in dynamic.items()
    )
    if not valid:
        raise CaptureError(
            f"dynamic is {dynamic!r:.80}",
            CallEdit(
                "give a dict of inputs with a name for each dimension that varies, such as "
                "{'tokens': {1: 'length'}}"
            ),
        )


class UnknownInputError(CaptureError):
    """Dynamic sizes of an input that the model does not have."""


def check_inputs(dynamic: Mapping[str, Mapping[int, str]] | None, inputs: Collection[str]) -> None:
    """Check that `dynamic` names inputs.

    Raises:
        CaptureError: one is no input.
    """
    unknown = sorted(n for n in dynamic or () if n.partition(".")[0] not in inputs)
    if unknown:
        raise UnknownInputError(
            f"dynamic names '{unknown[0]}', which is not an input; the inputs are "
            f"{', '.join(inputs)}"
        )


def check_axes(name: str, axes: Iterable[int], example: torch.Tensor) -> None:
    """Check that the example of an input has these dimensions, of sizes that torch.export takes.

    Raises:
        CaptureError: it has not.
    """
    for axis in axes:
        shape = list(example.shape)
        if not 0 <= axis < len(shape):
            raise CaptureError(f"input '{name}' has no dimension {axis}: its shape is {shape}")
        if shape[axis] < 2:
            raise CaptureError(
                f"dimension {axis} of input '{name}' is dynamic, so it needs a size of at "
                f"least 2 in the example, which has the shape {shape}"
            )


def _is_named(dimensions: Any) -> bool:
    return isinstance(dimensions, Mapping) and all(
        type(axis) is int and isinstance(name, str) and name and not name.isdecimal()
        for axis, name in dimensions.items()
    )


def sizes_of(name: str, dynamic: Mapping[str, Mapping[int, str]]) -> Mapping[int, str]:
    """Return the dynamic dimensions of an input tensor, {dimension: name}.

    Args:
        name: name of the tensor, "past_key_values.0.encoder.key" where it is nested.
        dynamic: what is said of an input, "past_key_values", applies to all tensors in it, and of
            the entries of a list, "past_key_values.encoder", to those of each.
    """
    parts = [part for part in name.split(".") if not part.isdecimal()]
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((dynamic[p] for p in (name, *prefixes) if p in dynamic), {})


def is_default(dynamic: Mapping[str, Mapping[int, str]] | None) -> bool:
    """Return whether the default dimensions are dynamic: without `dynamic`, or with additions."""
    return dynamic is None or isinstance(dynamic, AddedSizes)


def double_single_sample(
    model: nn.Module, example: Batch, dynamic: Mapping[str, Mapping[int, str]] | None
) -> Batch:
    """Double a batch of one sample: torch.export specializes a size of 1 as a constant."""
    if example.size != 1:
        return example
    named = example.arguments_of(model)
    leaves = pytree.tree_flatten_with_path(dict(named))[0]
    chosen = {
        id(leaf)
        for path, leaf in leaves
        if is_default(dynamic) or 0 in sizes_of(".".join(map(key_text, path)), dynamic or {})
    }

    def double(x: Any) -> Any:
        one = isinstance(x, torch.Tensor) and x.dim() > 0 and x.shape[0] == 1
        return torch.cat([x, x]) if one and id(x) in chosen else x

    return Batch(*pytree.tree_map(double, (example.args, example.kwargs)))


def unshare_inputs(example: Batch) -> Batch:
    """Copy tensors passed for several inputs: torch.export would merge those inputs into one."""
    seen: set[int] = set()

    def own(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or id(x) not in seen:
            seen.add(id(x))
            return x
        return x.clone()

    return Batch(*pytree.tree_map(own, (example.args, example.kwargs)))


def name_keyword_inputs(model: nn.Module, example: Batch) -> None:
    """Give a forward with `**kwargs` a signature with the names of the example.

    Otherwise torch.export does not know which dynamic size belongs to which input. The caller
    removes the attribute `forward`.
    """
    forward = model.forward
    signature = inspect.signature(forward)
    own = [p for p in signature.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    if len(own) == len(signature.parameters):
        return
    named = {p.name: p.kind for p in own}
    names = [n for n in example.kwargs if n not in named]
    clash = any(named.get(n) in _NAMELESS for n in example.kwargs)
    if clash or not names or not all(map(str.isidentifier, names)):
        return
    more = [Parameter(n, Parameter.KEYWORD_ONLY) for n in names]

    @wraps(forward)
    def spelled(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    spelled.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]  # read by inspect
    model.forward = spelled


class SuggestedSizes(dict[str, Mapping[int, str]]):
    """Input -> {dimension: name}, as `capture_model` takes it. A dimension that the model has fixed
    is left out, where one that the user asks for is an error."""

    def has(self, name: str, axis: int) -> bool:
        """Return whether a dimension is dynamic."""
        return axis in self.get(name, {})

    def without(self, name: str, axis: int) -> SuggestedSizes:
        """Return the sizes without a dimension."""
        rest = {k: v for k, v in self[name].items() if k != axis}
        return type(self)({**self, name: rest})


class AddedSizes(dict[str, Mapping[int, str]]):
    """Input -> {dimension: name} of dimensions that are dynamic besides the default ones: dimension
    0 of every input, where the model allows it, and those of an ONNX file."""


class VaryingSizes(AddedSizes, SuggestedSizes):
    """Input -> {dimension: name} of dimensions whose sizes differ between batches of the data."""


def varying_sizes(model: nn.Module, batches: Sequence[Batch]) -> VaryingSizes | None:
    """Return the dimensions but 0 whose sizes differ between batches; None where no size does.

    A size of 1 in the first batch stays fixed: torch.export takes it as a constant.
    """
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for batch in batches:
        for path, leaf in pytree.tree_flatten_with_path(dict(batch.arguments_of(model)))[0]:
            if isinstance(leaf, torch.Tensor):
                shapes.setdefault(".".join(map(key_text, path)), []).append(leaf.shape)
    sizes = VaryingSizes()
    names: dict[tuple[int, ...], str] = {}  # of sizes in turn: a mask has the lengths of its tokens
    for name, own in shapes.items():
        series = dict(enumerate(zip(*own, strict=False)))
        varying = {a: s for a, s in series.items() if a and s[0] > 1 and len(set(s)) > 1}
        if not varying or len(set(map(len, own))) > 1:
            continue
        plain = {axis: f"{name}_{axis}".replace(".", "_") for axis in varying}
        if len(set(varying.values())) == len(varying):  # no square image, whose sides may differ
            plain = {axis: names.setdefault(s, plain[axis]) for axis, s in varying.items()}
        sizes[name] = plain
    return sizes or None


def is_run_error(error: BaseException) -> bool:
    """Return whether an error says that the model does not run on a batch."""
    return isinstance(error, CaptureError) and error.problem.startswith(DOES_NOT_RUN)


class FixedSizeError(CaptureError):
    """A dimension that was to be dynamic, and that the model fixes.

    Attributes:
        name: name of the input.
        axis: the dimension.
        size: the only one that the model takes.
    """

    def __init__(self, name: str, axis: int, size: int) -> None:
        super().__init__(
            f"dimension {axis} of input '{name}' cannot be dynamic: the model takes {size} only",
            ModelEdit(
                "compute with x.shape where it has len(x), int(...) or a loop over that size"
            ),
            Omission("--dynamic", "leave the dimension out of {}"),
        )
        self.name, self.axis, self.size = name, axis, size
