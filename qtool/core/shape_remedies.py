"""What to write for a tensor that lacks a batch, has its channels last, or holds bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qtool.core.remedies import DataEdit

NORMALISED = "then the mean and standard deviation of the training, if it had any"
"""What the expression x.float() / 255 leaves out."""


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
    if len(shape) == 4 and fits([shape[axis] for axis in (0, 3, 1, 2)]):
        return [DataEdit("its channels are last: give {}", "x.permute(0, 3, 1, 2)")]
    return []
