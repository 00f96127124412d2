"""Torch operator -> writer of its ONNX form, for all that torch.onnx does not write."""

from __future__ import annotations

from collections.abc import Mapping

from qtool.backends.onnx.operators import attention, elementwise, layers, moves
from qtool.backends.onnx.operators.schemas import TorchOperator, Writer

WRITERS: dict[TorchOperator, Writer] = {
    **attention.WRITERS,
    **elementwise.WRITERS,
    **layers.WRITERS,
    **moves.WRITERS,
}
"""Forms of ONNX's own operators."""

CONTRIB: Mapping[TorchOperator, Writer] = {
    **attention.CONTRIB,
    **elementwise.CONTRIB,
    **layers.CONTRIB,
}
"""Forms in ONNX Runtime's domain, for targets that allow it."""


def writers(contrib: bool) -> Mapping[TorchOperator, Writer]:
    """Return torch operator -> ONNX form; `contrib` allows operators of ONNX Runtime's domain."""
    return {**WRITERS, **CONTRIB} if contrib else WRITERS
