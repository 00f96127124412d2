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
    common = (counts >= MIN_TOKENS)[:, None, None]
    return (rows[0] * common, rows[1] * common), rare_experts(layer, counts)


def rare_experts(layer: str, tokens: torch.Tensor) -> str:
    """Return a sentence that names the experts with few tokens; "" without any.

    Args:
        layer: name of the layer.
        tokens: number of tokens of each expert.
    """
    numbers = (tokens < MIN_TOKENS).nonzero().flatten().tolist()
    if not numbers:
        return ""
    # the experts are in the subject: notes of several layers are joined by what follows it
    return (
        f"{layer}.weight[{','.join(map(str, numbers))}]: rounded to nearest, since fewer than "
        f"{MIN_TOKENS} calibration tokens reach these experts; more data may help"
    )
