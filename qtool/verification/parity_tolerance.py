"""How far two right computations of a float tensor may differ."""

from __future__ import annotations

import torch

from qtool.core.graph.float_tolerance import TOLERANCE, distance

CODES = 255
"""Steps in the range of an output: differences of floats are printed in 1/255 of the range."""


def is_close(a: torch.Tensor, b: torch.Tensor, noise: float, discontinuous: bool) -> bool:
    """Return whether two results agree within the tolerance.

    Args:
        a: the expected tensor; its range is the unit.
        b: the other tensor.
        noise: largest difference that float32 rounding explains, as a share of the range.
        discontinuous: single values may jump, so the mean difference may be one code.
    """
    if distance(a, b) <= max(TOLERANCE, noise):
        return True
    if not discontinuous or a.shape != b.shape or not a.is_floating_point():
        return False
    finite = a[a.isfinite()].double()
    span = float(finite.max() - finite.min()) if finite.numel() else 0.0
    difference = (a.double() - b.double()).abs().where(a != b, 0.0).nan_to_num(nan=float("inf"))
    return float(difference.mean()) <= span / CODES
