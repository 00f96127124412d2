"""Torch operator -> writer of its ONNX form, for all that torch.onnx does not write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qtool.backends.onnx.operators import (
    attention,
    codes,
    elementwise,
    experts,
    layers,
    lookups,
    moves,
    norms,
    pools,
    products,
    recurrent,
    rotary,
)
from qtool.backends.onnx.operators.schemas import Writer

WRITERS: dict[Any, Writer] = {
    **attention.WRITERS,
    **codes.WRITERS,
    **elementwise.WRITERS,
    **experts.WRITERS,
    **layers.WRITERS,
    **lookups.WRITERS,
    **moves.WRITERS,
    **pools.WRITERS,
    **products.WRITERS,
    **recurrent.WRITERS,
    **rotary.WRITERS,
}
"""Forms of ONNX's own operators."""

CONTRIB: Mapping[Any, Writer] = {
    **attention.CONTRIB,
    **elementwise.CONTRIB,
    **experts.CONTRIB,
    **layers.CONTRIB,
    **lookups.CONTRIB,
    **norms.CONTRIB,
    **recurrent.CONTRIB,
    **rotary.CONTRIB,
}
"""Forms in ONNX Runtime's domain, for targets that allow it."""


def writers(contrib: bool) -> Mapping[Any, Writer]:
    """Return torch operator -> ONNX form; `contrib` allows operators of ONNX Runtime's domain."""
    return {**WRITERS, **CONTRIB} if contrib else WRITERS
