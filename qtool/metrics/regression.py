"""Metrics of numbers that a model predicts: mean absolute and squared error, R2."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from qtool.core.errors import DataError
from qtool.core.number_texts import quantity
from qtool.core.remedies import Argument, DataEdit
from qtool.core.types import Array
from qtool.metrics.intervals import CONFIDENCE
from qtool.metrics.metric import Metric, make_metric
from qtool.metrics.sample_statistics import CLASSES, SampleStatistics

BY_FUNCTION = Argument("--eval", text="use a function of both, with {}")
"""Remedy of labels that the outputs are not compared with."""


def targets_of(measured: SampleStatistics, labels: ArrayLike | None) -> Array | None:
    """Return labels as numbers to predict, float64 [samples, values]; None for class numbers.

    They are class numbers where the first output scores classes and there is one per sample; so are
    labels of 0 and 1 alone, which no error in numbers judges.

    Raises:
        DataError: there are other numbers of them than of the first output, or one is NaN or Inf.
    """
    if labels is None:
        return None
    array = np.asarray(labels)
    if array.dtype.kind not in "biuf" or not array.ndim or measured.scores not in ("", CLASSES):
        return None
    flat = array.reshape(len(array), -1).astype(np.float64)
    if np.isin(flat, (0, 1)).all() or (measured.n_classes and flat.shape[1] == 1):
        return None
    if len(flat) != measured.samples:
        raise DataError(
            f"{len(flat)} labels for {measured.samples} samples", DataEdit("pass one per sample")
        )
    if not np.isfinite(flat).all():
        raise DataError(
            f"label {int(np.argmin(np.isfinite(flat).all(1)))} is NaN or infinite",
            DataEdit("leave out that sample, or fill it in"),
        )
    if (width := measured.values.shape[2]) != flat.shape[1]:
        has = f"the first output has {width}" if width else "those of the first output are not kept"
        count = quantity(flat.shape[1], "number")
        raise DataError(f"the labels have {count} per sample, {has}", BY_FUNCTION)
    return flat


def regression_metrics(
    measured: SampleStatistics, targets: Array, confidence: float = CONFIDENCE
) -> list[Metric]:
    """Return MAE, MSE and R2 of every model.

    Of several values per sample the errors are means over them, and R2 is the mean of that of each
    (scikit-learn's `uniform_average`); values that never change have none.

    Args:
        measured: statistics of the outputs.
        targets: [samples, values] numbers to predict.
        confidence: probability of the intervals.
    """
    errors = measured.values.astype(np.float64) - targets
    rows = {"MAE": np.abs(errors).mean(2), "MSE": np.square(errors).mean(2)}
    metrics = [
        make_metric(name, each, "built in", higher_is_better=False, confidence=confidence)
        for name, each in rows.items()
    ]
    shares = np.array([explained_share(each, targets) for each in errors])
    if np.isfinite(shares).all():
        metrics.append(make_metric("R2", shares, "built in"))
    return metrics


def explained_share(errors: Array, targets: Array) -> float:
    """Return R2, the mean over values that change; NaN if none does.

    Args:
        errors: [samples, values] predicted less expected numbers.
        targets: [samples, values] expected numbers.
    """
    total = np.square(targets - targets.mean(0)).sum(0)
    varies = total > 0
    if not varies.any():
        return float("nan")
    return float(1 - (np.square(errors).sum(0)[varies] / total[varies]).mean())
