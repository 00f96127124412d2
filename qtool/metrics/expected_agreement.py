"""The agreement to expect of new samples, where those at hand are too few to count changes.

A dozen samples have no change of class, or one of a dozen. Their margins and errors tell more: any
error of the difference between the two best scores, with either sign, may meet any margin.
"""

from __future__ import annotations

import numpy as np

from qtool.core.types import Array
from qtool.metrics.output_kind import sums_to_one
from qtool.metrics.texts import changes_text
from qtool.metrics.token_scores import log_softmax

FEWEST = 8  # samples whose errors tell what others have
MOST, MOST_TEXTS = 256, 64  # samples; of more, changes are counted
MOST_ODDS = 4.0  # logarithm: what is surer changes neither a decision nor the errors near it


def expected_same_class(a: Array, b: Array, others: Array | None = None) -> float | None:
    """Return the share of equal best classes to expect; None where samples are many or very few, or
    values are not finite.

    Args:
        a: scores of the float model, [samples, classes].
        b: those of the quantized model.
        others: scores of the float model on more samples, which add margins alone: those of the
            calibration, whose errors a conversion has made small.
    """
    if not FEWEST <= len(a) <= MOST or not np.isfinite(b).all():
        return None
    is_share = sums_to_one(a, -1)
    margins, errors, _ = _margins_and_errors(a, b, is_share)
    if others is not None and others.shape[1:] == a.shape[1:]:
        margins = np.append(margins, _margins_and_errors(others, others, is_share)[0])
    return 1 - float((errors > margins[:, None]).mean()) / 2


def expected_same_text(a: Array, b: Array, blank: int, equal: float) -> float | None:
    """Return the share of equal texts to expect; None as for `expected_same_class`.

    A text stays if no position changes that another label would make another text of. Neighbours
    change together where a character moves by a position, so that this is 14 points too low to 2
    too high on four networks: it counts as much as `FEWEST` samples next to those at hand.

    Args:
        a: scores of the float model, [samples, positions, classes].
        b: those of the quantized model.
        blank: the class between characters.
        equal: share of equal texts of the samples.
    """
    if not FEWEST <= len(a) <= MOST_TEXTS or not np.isfinite(b).all():
        return None
    margins, errors, best = _margins_and_errors(a, b, sums_to_one(a, -1))
    larger = 1 - np.searchsorted(np.sort(errors, None), margins, side="right") / errors.size
    counts = changes_text(best[..., 1], best[..., 0], blank)
    estimate = float((1 - larger / 2 * counts).prod(1).mean())
    return (FEWEST * estimate + equal * len(a)) / (FEWEST + len(a))


def expected_same_decision(a: Array, b: Array, others: Array | None = None) -> float | None:
    """Return the share of probabilities [samples, 1] to expect on the same side of 0.5. The
    arguments and the result are those of `expected_same_class`."""
    if not FEWEST <= len(a) <= MOST or not np.isfinite(b).all():
        return None
    odds, coded = _log_odds(a), _log_odds(b)
    margins = np.abs(odds if others is None else np.append(odds, _log_odds(others)))
    return 1 - float((np.abs(coded - odds)[:, 0] > margins.reshape(-1, 1)).mean()) / 2


def _log_odds(a: Array) -> Array:
    """Return the logarithm of the odds of probabilities, within `MOST_ODDS`."""
    with np.errstate(divide="ignore"):
        odds: Array = np.log(a.clip(0, 1)) - np.log1p(-a.clip(0, 1))
    return odds.clip(-MOST_ODDS, MOST_ODDS)


def log_probabilities(a: Array, is_share: bool) -> Array:
    """Return the logarithms of probabilities, or of the softmax of logits."""
    if is_share:
        return np.log(np.maximum(a, np.finfo(np.float32).tiny))
    with np.errstate(invalid="ignore"):
        return log_softmax(a)


def _margins_and_errors(a: Array, b: Array, is_share: bool) -> tuple[Array, Array, Array]:
    """Return the difference between the two best scores, the size of its error, [...], and the two
    classes, the best one last, [..., 2]. a, b: scores [..., classes]."""
    best = np.argpartition(a, -2, -1)[..., -2:]
    pairs = (np.take_along_axis(x, best, -1).astype(np.float64) for x in (a, b))
    margins, others = (np.diff(log_probabilities(pair, is_share))[..., 0] for pair in pairs)
    return margins, np.abs(others - margins), best
