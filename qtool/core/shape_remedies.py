"""What to write for a tensor that lacks a batch, has its channels last, holds bytes, or images of
another size."""

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
    edit = image_edit(expected, shape)
    return [] if edit is None else [edit[0]]


_CHANNELS = {
    (3, 1): "x.mean(1, keepdim=True)",
    (1, 3): "x.expand(-1, 3, -1, -1)",
    (4, 3): "x[:, :3]",
}
"""Channels of images, and those that the model takes -> how to make these."""


def image_edit(
    expected: Sequence[Any], shape: Sequence[int]
) -> tuple[DataEdit, tuple[int, ...]] | None:
    """Return what to write for images with other channels or of another size, and their shape then;
    None for other tensors.

    Args:
        expected: sizes of the input; what is no int is a dynamic size.
        shape: sizes of the tensor.
    """
    if len(shape) != 4 or len(expected) != 4 or expected[1] not in (1, 3):
        return None
    code = "x" if expected[1] == shape[1] else _CHANNELS.get((shape[1], expected[1]), "")
    if not code:
        return None
    size = [e if isinstance(e, int) else s for e, s in zip(expected[2:], shape[2:], strict=True)]
    if size != [*shape[2:]]:
        code = f"torch.nn.functional.interpolate({code}, ({size[0]}, {size[1]}))"
    if code == "x":
        return None
    edit = DataEdit("change the images as the training did, for instance with {}", code)
    return edit, (shape[0], expected[1], *size)
