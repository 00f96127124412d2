"""What to write for a tensor that lacks a batch, has its channels last, or holds bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qtool.core.remedies import DataEdit

NORMALISED = "then the mean and standard deviation of the training, if it had any"
"""What the expression x.float() / 255 leaves out."""
AS_LABELS = DataEdit("it has one number per sample, as labels have: give the inputs")


def type_remedies(expected: str, actual: str, sizes: Sequence[int]) -> list[DataEdit]:
    """Return what to write for a tensor of another dtype.

    Args:
        expected: dtype of the input, such as "float32".
        actual: dtype of the tensor.
        sizes: sizes of the tensor.
    """
    if len(sizes) == 1:
        return [AS_LABELS]
    if actual == "uint8":
        return [DataEdit(f"convert it first ({{}}), {NORMALISED}", "x.float() / 255")]
    return [DataEdit("convert it first ({})", f"x.to(torch.{expected})")]


def shape_remedies(expected: Sequence[Any], shape: Sequence[int]) -> list[DataEdit]:
    """Return what to write for a tensor without a batch or with its channels last.

    Args:
        expected: sizes of the input; what is no int is a dynamic size.
        shape: sizes of the tensor.
    """

    def fits(sizes: Sequence[int]) -> bool:
        pairs = zip(expected, sizes, strict=False)
        same = all(not isinstance(e, int) or e == s for e, s in pairs)
        return len(sizes) == len(expected) and same

    if fits((1, *shape)):
        return [DataEdit("give batches, {} or those of a DataLoader", "x[None]")]
    if len(shape) == 1 < len(expected):
        return [AS_LABELS]
    if len(shape) == 4 and fits([shape[axis] for axis in (0, 3, 1, 2)]):
        return [DataEdit("its channels are last: give {}", "x.permute(0, 3, 1, 2)")]
    return []
