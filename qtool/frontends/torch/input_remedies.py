"""Finds how to change a batch that a model does not take, by trying the usual changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import nn
from torch.utils import _pytree as pytree

from qtool.core.argument_names import python_only
from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.core.remedies import DataEdit, ModelEdit
from qtool.core.shape_remedies import NORMALISED

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Step:
    """A change of the tensors of a batch.

    Attributes:
        code: Python expression; {} stands for the tensor.
        applies: whether a tensor may need it.
        change: applies it.
        kind: group of the step; only one of a group is tried at a time.
    """

    code: str
    applies: Callable[[torch.Tensor], bool]
    change: Change
    kind: str


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return whether values may be indices: numbers with fractions are none."""
    return not tensor.is_floating_point() or bool((tensor == tensor.round()).all())


_CHANNELS = (1, 3, 4)
_STEPS = (
    Step("{}[None]", lambda t: t.dim() in (1, 2, 3), lambda t: t[None], "batch"),
    Step("{}[:, None]", lambda t: t.dim() in (2, 3), lambda t: t[:, None], "layout"),
    Step(
        "{}.permute(0, 3, 1, 2)",
        lambda t: t.dim() == 4 and t.shape[3] in _CHANNELS,
        lambda t: t.permute(0, 3, 1, 2),
        "layout",
    ),
    Step(
        "{}.permute(2, 0, 1)[None]",
        lambda t: t.dim() == 3 and t.shape[2] in _CHANNELS,
        lambda t: t.permute(2, 0, 1)[None],
        "layout",
    ),
    Step("{}.flatten(1)", lambda t: t.dim() > 2, lambda t: t.flatten(1), "layout"),
    Step("{}.transpose(1, 2)", lambda t: t.dim() == 3, lambda t: t.transpose(1, 2), "layout"),
    Step("{}.float() / 255", lambda t: t.dtype is torch.uint8, lambda t: t.float() / 255, "type"),
    Step(
        "{}.float()",
        lambda t: not t.is_floating_point() and not t.is_complex() and t.dtype is not torch.uint8,
        lambda t: t.float(),
        "type",
    ),
    Step(
        "{}.long()",
        lambda t: t.dtype is not torch.int64 and not t.is_complex() and _is_whole(t),
        lambda t: t.long(),
        "type",
    ),
)
"""In the order in which they are applied."""


def input_remedy(model: nn.Module, batch: Batch) -> DataEdit | None:
    """Return what to write so that a model takes a batch that it does not take, or None.

    The model has run with that change. Changes with few steps are tried first.
    """
    tensors = [t for _, t in batch.tensors()]
    useful = [s for s in _STEPS if any(map(s.applies, tensors))]
    for count in (1, 2, 3):
        for steps in combinations(useful, count):
            if len({s.kind for s in steps}) == count and _runs(model, batch, steps):
                return _edit(steps, batch)
    return None


def check_samples(model: nn.Module, batch: Batch) -> None:
    """Check that a batch is more than one sample: a vector of floating point numbers for which the
    model computes the same as for a batch of it.

    Raises:
        CaptureError: it is one.
    """
    tensors = batch.tensors()
    if len(tensors) != 1 or tensors[0][1].dim() != 1 or not tensors[0][1].is_floating_point():
        return
    whole = batch.map_tensors(lambda t: t[None])
    try:
        with torch.no_grad():
            one = pytree.tree_leaves(model(*batch.args, **batch.kwargs))
            several = pytree.tree_leaves(model(*whole.args, **whole.kwargs))
        same = all(_is_close(a, b[0]) for a, b in zip(one, several, strict=True))
    except (Exception, SystemExit):  # noqa: BLE001  # the user's code may raise anything
        return
    if same:
        where, tensor = tensors[0]
        raise CaptureError(
            f"{where} is one sample of {len(tensor)} numbers, no batch of samples",
            DataEdit("give batches, {} or those of a DataLoader", "x[None]"),
            DataEdit("give all samples as one array"),
            *python_only(ModelEdit("fix every size with dynamic={}")),
        )


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether outputs agree but for the order of sums, which a batch changes."""
    return one.shape == other.shape and torch.allclose(one, other, 1e-3, 1e-5)


def _edit(steps: tuple[Step, ...], batch: Batch) -> DataEdit:
    code = "x"
    for step in steps:
        code = step.code.format(code)
    tensors = batch.tensors()
    changed = [where for where, t in tensors if any(step.applies(t) for step in steps)]
    which = f"; x is {', '.join(changed)}" if len(changed) < len(tensors) else ""
    loader = "; a DataLoader makes batches of samples" if steps[0].kind == "batch" else ""
    normalised = f", {NORMALISED}" if "/ 255" in code else ""
    return DataEdit(
        f"it runs on {{}}, so convert the batches with that{which}{normalised}{loader}", code
    )


def _runs(model: nn.Module, batch: Batch, steps: tuple[Step, ...]) -> bool:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        for step in steps:
            if not step.applies(tensor):
                return tensor
            tensor = step.change(tensor)
        return tensor

    try:
        changed = batch.map_tensors(change)
        with torch.no_grad():
            model(*changed.args, **changed.kwargs)
    except (Exception, SystemExit):  # noqa: BLE001  # the user's code may raise anything
        return False
    return True
