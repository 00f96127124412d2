"""Tensors that are not dense; torch need not be there."""

from __future__ import annotations

from typing import Any

from qtool.core.remedies import DataEdit


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
