"""Scores of tokens as distributions: their logarithms, cross-entropy and divergence, in nats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qtool.core.types import Array


def log_softmax(logits: Array) -> Array:
    """Return the logarithms of probabilities, float64, of logits [..., classes]."""
    scores = logits.astype(np.float64)
    scores -= scores.max(-1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
    return scores


def cross_entropy(logits: Array, targets: Array) -> Array:
    """Return the loss of each token, float64 [tokens], of logits [tokens, classes]."""
    chosen = targets[:, None].astype(np.int64)
    losses: Array = -np.take_along_axis(log_softmax(logits), chosen, -1)[:, 0]
    return losses


def divergences(own: Array, other: Array) -> Array:
    """Return the Kullback-Leibler divergence of each row of logarithms [rows, classes] from those
    of a reference, float64 [rows]. own: of the reference."""
    shares = np.exp(own)
    with np.errstate(invalid="ignore", over="ignore"):
        terms = shares * (own - other)
    each: Array = np.where(shares > 0, terms, 0.0).sum(-1)
    return each


def equal_tokens(compared: Array, best: Sequence[Array]) -> tuple[Array, Array]:
    """Return the number of compared tokens [samples], and of each file of those with the best class
    of the first one, [files, samples].

    Args:
        compared: bool [samples, tokens].
        best: best classes of each file, [samples, tokens].
    """
    equal = np.stack([((each == best[0]) & compared).sum(1) for each in best])
    return compared.sum(1), equal
