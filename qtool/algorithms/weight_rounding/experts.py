"""Experts that few calibration tokens reach.

The router sends a token to a few experts, so each sees a part of the calibration tokens, and some
see hardly any. Weights that are fitted to a handful of tokens are worse on all others: such experts
are rounded to nearest, and named.
"""

from __future__ import annotations

import torch

MIN_TOKENS = 64
"""Tokens that an expert needs for rounding with error feedback."""

Rows = tuple[torch.Tensor, torch.Tensor]


def without_rare_experts(layer: str, rows: Rows) -> tuple[Rows, str]:
    """Return rows of which those of rare experts are zero, and a sentence that names these.

    Rows of zeros have a Hessian of zero, which rounds to nearest.

    Args:
        layer: name of the layer.
        rows: inputs [experts, rows, in] and targets [experts, rows, out]; missing rows are zero.
    """
    counts = rows[0].any(-1).sum(1)
    rare = counts < MIN_TOKENS
    if not bool(rare.any()):
        return rows, ""
    names = ", ".join(f"{i} ({int(counts[i])})" for i in rare.nonzero().flatten().tolist())
    kept = rows[0] * ~rare[:, None, None], rows[1] * ~rare[:, None, None]
    return kept, (
        f"{layer}.weight: experts {names} are rounded to nearest, since fewer than {MIN_TOKENS} "
        "calibration tokens reach them (their number in brackets); more data may"
    )
