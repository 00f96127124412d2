"""What to write for a tensor that lacks a batch, has its channels last, is not dense, or has
another type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from qtool.core.remedies import Argument, DataEdit
from qtool.core.torch_package import has_torch

NORMALISED = "then the mean and standard deviation of the training, if it had any"
"""What the expression x.float() / 255 leaves out."""
AS_LABELS = DataEdit("it has one number per sample, as labels have: give the inputs")


_BITS = re.compile("(u?)int(8|16|32|64)")


_IN_NUMPY = (
    (re.compile(r"\.to\(torch\.(\w+)\)"), r'.astype("\1")'),
    (re.compile(r"\.float\(\)"), '.astype("float32")'),
    (re.compile(r"\.permute\("), ".transpose("),
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
    return [
        DataEdit(
            f"its values are {low:g} to {high:g}, with fractions or beyond {expected}: give the "
            "integers that the model was trained on, of an image those before it was normalised"
        )
    ]


def shape_remedies(
    expected: Sequence[Any], shape: Sequence[int], name: str = ""
) -> list[DataEdit | Argument]:
    """Return what to write for a tensor without a batch, with its channels last, or of other sizes.

    Args:
        expected: sizes of the input; what is no int is a dynamic size.
        shape: sizes of the tensor.
        name: name of the input of a graph that could be captured with other dynamic sizes.
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
    if name and len(shape) == len(expected):
        spatial = range(2 if len(shape) > 3 else 1, len(shape))  # channels do not vary
        axes = [a for a in spatial if isinstance(expected[a], int) and expected[a] != shape[a]]
        text = "if the model takes other sizes, give {}"
        return [Argument("--dynamic", tuple(f"{name}:{a}" for a in axes), text)] if axes else []
    return []


def unsupported_layout(tensor: Any) -> tuple[str, DataEdit] | None:
    """Return what a tensor is that is not dense, and what to give; None if it is."""
    if tensor.is_nested:
        return "nested", DataEdit("give a dense tensor, {}", "x.to_padded_tensor(0.0)")
    if tensor.is_quantized:
        return f"a quantized tensor ({tensor.dtype})", DataEdit(
            "give its values, {}", "x.dequantize()"
        )
    if str(tensor.layout) != "torch.strided":
        return f"sparse ({tensor.layout})", DataEdit("give a dense tensor, {}", "x.to_dense()")
    if tensor.is_meta:
        return "on the meta device, without values", DataEdit("give a dense tensor")
    return None
