"""Torch operator -> writer of its ONNX form, for all that torch.onnx does not write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qtool.backends.onnx.operators import attention, elementwise, layers, moves
from qtool.backends.onnx.operators.schemas import Writer

WRITERS: dict[Any, Writer] = {
    **attention.WRITERS,
    **elementwise.WRITERS,
    **layers.WRITERS,
    **moves.WRITERS,
}
"""Forms of ONNX's own operators."""

CONTRIB: Mapping[Any, Writer] = {
    **attention.CONTRIB,
    **elementwise.CONTRIB,
    **layers.CONTRIB,
}
"""Forms in ONNX Runtime's domain, for targets that allow it."""


def writers(contrib: bool) -> Mapping[Any, Writer]:
    """Return torch operator -> ONNX form; `contrib` allows operators of ONNX Runtime's domain."""
    return {**WRITERS, **CONTRIB} if contrib else WRITERS
