"""What to write for a tensor that lacks a batch, has its channels last, holds bytes, or images of
another size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from qtool.core.remedies import DataEdit
from qtool.core.torch_package import has_torch

NORMALISED = "then the mean and standard deviation of the training, if it had any"
"""What the expression x.float() / 255 leaves out."""
AS_LABELS = DataEdit("it has one number per sample, as labels have: give the inputs")


_BITS = re.compile("(u?)int(8|16|32|64)")
_LARGEST_NORMALISED = 16.0
"""Normalised images reach 5, and bytes nearly always exceed this."""


_IN_NUMPY = (
    (re.compile(r"\.to\(torch\.(\w+)\)"), r'.astype("\1")'),
    (re.compile(r"\.float\(\)"), '.astype("float32")'),
    (re.compile(r"\.permute\("), ".transpose("),
    (re.compile(r"keepdim="), "keepdims="),
    (re.compile(r"x\.expand\(-1, 3, -1, -1\)"), "x.repeat(3, 1)"),
)
"""Expressions of torch -> those of NumPy, where torch is not installed."""


def _edit(text: str, code: str) -> DataEdit:
    """Return an edit of data by an expression, of NumPy where torch is not installed."""
    for form, other in () if has_torch() else _IN_NUMPY:
        code = form.sub(other, code)
    return DataEdit(text, code)


def type_remedies(expected: str, actual: str, values: Any) -> list[DataEdit]:
    """Return what to write for a tensor of another dtype, so that its values survive.

    Args:
        expected: dtype of the input, such as "float32".
        actual: dtype of the tensor.
        values: the tensor or array.
    """
    if len(values.shape) == 1:
        return [AS_LABELS]
    convert = _edit("convert it first ({})", f"x.to(torch.{expected})")
    bits = _BITS.fullmatch(expected)
    if actual == "uint8" and bits is None:
        code = "x.float() / 255" if expected == "float32" else f"x.to(torch.{expected}) / 255"
        return [_edit(f"convert it first ({{}}), {NORMALISED}", code)]
    if 0 in values.shape or bits is None or re.fullmatch(r"b?float\d+|u?int\d+", actual) is None:
        return [convert]
    low, high, levels = float(values.min()), float(values.max()), 2 ** int(bits[2])
    lowest = 0 if bits[1] else -levels // 2
    if lowest <= low and high < lowest + levels and bool((values == values.round()).all()):
        return [convert]
    return [_integer_edit(expected, actual, (low, high), (lowest, levels))]


def _integer_edit(
    expected: str, actual: str, ends: tuple[float, float], grid: tuple[int, int]
) -> DataEdit:
    """Return how values that an integer type cannot hold become integers.

    Args:
        expected, actual: as above.
        ends: the least and the largest value.
        grid: the lowest integer of the type, and how many it has.
    """
    (low, high), (lowest, levels), shown = ends, grid, f"{ends[0]:g} to {ends[1]:g}"
    if {expected, actual} == {"int8", "uint8"}:
        code = f"x.to(torch.int16) {'+' if lowest == 0 else '-'} 128"
        return _edit("shift it first, {}", f"({code}).to(torch.{expected})")
    if levels == 256 and actual[0] in "fb" and high <= 1 and low >= -1:
        top, shift = levels - 1, f" - {-lowest}" if lowest else ""
        code = f"x * {top}" if low >= 0 else f"(x + 1) * {top / 2}"
        code = f"({code}{shift}).round().to(torch.{expected})"
        return _edit(f"its values are {shown}, those of images that were scaled: give {{}}", code)
    if lowest <= low and high < lowest + levels and max(-low, high) > _LARGEST_NORMALISED:
        return _edit("round it first, {}", f"x.round().to(torch.{expected})")
    return DataEdit(
        f"its values are {shown} and {expected} cannot hold them: give the integers that the model "
        "was trained on, of an image those before it was normalised"
    )


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
        return [_edit("its channels are last: give {}", "x.permute(0, 3, 1, 2)")]
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
        if not has_torch():
            text = f"resize the images to {size[0]} x {size[1]} as the training did"
            return DataEdit(text), (shape[0], shape[1], *size)
        code = f"torch.nn.functional.interpolate({code}, ({size[0]}, {size[1]}))"
    if code == "x":
        return None
    edit = _edit("change the images as the training did, for instance with {}", code)
    return edit, (shape[0], expected[1], *size)
