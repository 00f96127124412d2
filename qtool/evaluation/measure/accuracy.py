"""Accuracy of several files on the same data: metrics, agreement, error, worst samples.

All of it comes from the numbers per sample that one pass over the data keeps, see `output_pass`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from qtool.core import formats
from qtool.core.errors import DataError
from qtool.core.remedies import DataEdit
from qtool.core.sqnr import decibels
from qtool.core.types import Array
from qtool.evaluation.measure.label_order import no_better_than_a_guess, other_order
from qtool.evaluation.measure.regression import BY_FUNCTION, regression_metrics, targets_of
from qtool.evaluation.measure.sample_statistics import (
    CLASSES,
    NEXT_TOKENS,
    TOKENS,
    TOP,
    SampleStatistics,
    check_finite,
)
from qtool.metrics.interval import CONFIDENCE, Interval
from qtool.metrics.metric import Metric, make_metric, perplexity_metric
from qtool.metrics.resampling import bootstrap_sums
from qtool.metrics.share_intervals import hit_interval
from qtool.verification.fidelity import OutputSqnr

WORST = 12

AGREEMENTS = {
    CLASSES: "top-1 agreement",
    TOKENS: "token agreement",
    NEXT_TOKENS: "next-token agreement",
}
"""What the outputs score -> the name of the agreement on it."""


@dataclass(frozen=True)
class WorstSample:
    """A sample with a large error relative to the reference.

    Attributes:
        index: position of the sample in the data.
        sqnr_db: SQNR of its outputs; None if there is no error.
        expected, predicted: top-1 class of the reference and of the model; None without scores.
        label: true class; None without labels.
        name: name of its file, or the begin of its text; "" if the data has no names.
        thumbnail: a small image as a data URI; "" if the data has no images.
        expected_name, predicted_name, label_name: names of these classes; "" if unknown.
    """

    index: int
    sqnr_db: float | None
    expected: int | None
    predicted: int | None
    label: int | None
    name: str = ""
    thumbnail: str = ""
    expected_name: str = ""
    predicted_name: str = ""
    label_name: str = ""


@dataclass(frozen=True)
class ModelAccuracy:
    """Outputs of a model relative to the reference.

    Attributes:
        agreement: share of samples with the same top-1, or of tokens, see `Accuracy.scores`; None
            without scores.
        sqnr_db: SQNR of all outputs, of the logits for a language model; None if there is no error,
            -200 if this model alone gives NaN or Inf.
        worst: the samples with the largest relative errors.
        outputs: SQNR of each output, in the order of the model; () for a single one.
        kl: mean Kullback-Leibler divergence of the next tokens of a language model from the
            reference, in nats; None of other models.
    """

    agreement: Interval | None
    sqnr_db: float | None
    worst: tuple[WorstSample, ...]
    outputs: tuple[OutputSqnr, ...] = ()
    kl: float | None = None


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of several models on the same samples.

    Attributes:
        samples: number of samples.
        metrics: the user's first, then top-1 and top-5 with labels, errors with numbers to predict,
            and the perplexity of a language model.
        models: the reference first, or the file alone that was measured without one.
        scores: what agreement compares: "classes" of samples, "tokens" (a class for each token),
            "next tokens" of a language model; "" if the outputs are no scores.
        tokens: number of compared tokens; 0 without scores per token.
        warnings: sentences on implausible results, for the top of every output.
    """

    samples: int
    metrics: tuple[Metric, ...]
    models: tuple[ModelAccuracy, ...]
    scores: str = ""
    tokens: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def agreement_name(self) -> str:
        """What `ModelAccuracy.agreement` is a share of, for a table."""
        return AGREEMENTS.get(self.scores, AGREEMENTS[CLASSES])


def summarize(
    measured: SampleStatistics,
    labels: ArrayLike | None,
    extra: Sequence[Metric] = (),
    names: Sequence[str] = (),
) -> Accuracy:
    """Return metrics, agreement and worst samples.

    Args:
        labels: [samples] class numbers; the first output must then be [samples, classes] scores. Or
            numbers to predict, of the shape of the first output.
        extra: the user's metrics, which come first. With them and without labels the outputs are
            not interpreted as class scores: they may be embeddings, for example.
        names: names of the models, where there are more than two.

    Raises:
        DataError: wrong number of labels, labels that are no classes, or the first output is not
            scores; or the reference outputs NaN or Inf on every sample.
    """
    check_finite(measured)
    predicts = targets_of(measured, labels) is not None
    if (predicts or (extra and labels is None)) and measured.scores == CLASSES:
        measured = replace(measured, classes=measured.classes[:, :, :0], scores="")
    metrics = [*extra, *built_in_metrics(measured, labels)]
    numbers = None if labels is None else np.asarray(labels).reshape(measured.samples, -1)[:, 0]
    models = tuple(_outcome(measured, i, numbers) for i in range(len(measured.noise)))
    named = list(names) or [f"model {i + 1}" for i in range(len(models))]
    if len(models) == 2:
        named[1] = "the quantized model"
    warnings = [*_warnings(measured, models, named)]
    if numbers is not None and measured.scores == CLASSES:
        answers = measured.classes[0, :, 0]
        order = other_order(answers, numbers, measured.n_classes)
        wrong = order or no_better_than_a_guess(answers, numbers)
        warnings += [] if wrong is None else [wrong]
    return Accuracy(
        measured.samples,
        tuple(metrics),
        models,
        measured.scores,
        int(measured.tokens.sum()),
        tuple(warnings),
    )


def built_in_metrics(
    measured: SampleStatistics, labels: ArrayLike | None, confidence: float = CONFIDENCE
) -> list[Metric]:
    """Return top-1 and top-5 with labels, errors with numbers to predict, the perplexity of a
    language model without.

    Raises:
        DataError: as for `summarize`.
    """
    if (targets := targets_of(measured, labels)) is not None:
        return regression_metrics(measured, targets, confidence)
    if labels is not None:
        return _label_metrics(measured, np.asarray(labels), confidence)
    if measured.scores != NEXT_TOKENS or not measured.tokens.sum():
        return []
    return [perplexity_metric(measured.loss, measured.tokens, confidence)]


def check_labels(labels: ArrayLike, samples: int | None) -> None:
    """Raise DataError unless there is one label per sample, or numbers to predict; None: an unknown
    number of samples."""
    if isinstance(labels, str):
        raise DataError(
            f"the labels are the text '{labels}'", DataEdit("pass the values, as frame['price']")
        )
    try:
        array = np.asarray(labels)
    except ValueError as error:  # lists of different lengths, or batches
        raise DataError(
            f"the labels are a {type(labels).__name__} that is no array",
            DataEdit("pass one class number per sample"),
        ) from error
    if array.dtype.kind == "V":
        raise DataError("the labels are records", DataEdit("pass one of their fields"))
    several = array.ndim > 1 and array.size > len(array)
    shapeless = not array.ndim or (array.ndim > 1 and not array.size)
    if shapeless or (several and np.isin(array, (0, 1)).all()):
        raise DataError(
            f"the labels have shape {list(array.shape)}",
            DataEdit("pass one class number per sample"),
        )
    if samples is not None and len(array) != samples:
        raise DataError(
            f"{len(array)} labels for {samples} samples", DataEdit("pass one per sample")
        )


def check_no_names(labels: ArrayLike) -> None:
    """Raise DataError if labels are names of classes."""
    names = np.asarray(labels).reshape(-1)
    if names.dtype.kind not in "UO":
        return
    if (name := next((n for n in names.tolist() if isinstance(n, str)), None)) is not None:
        raise DataError(
            f"the labels are names, such as {name!r:.40}",
            DataEdit("pass class numbers, whole and from 0"),
            DataEdit(
                "number them in alphabetical order, if the model's classes are, with "
                "numpy.unique(labels, return_inverse=True)[1]"
            ),
        )


def check_classes(labels: Array, n_classes: int) -> None:
    """Raise DataError unless the labels are numbers of classes."""
    if labels.dtype.kind not in "iub" and not (
        labels.dtype.kind == "f" and (np.isfinite(labels) & (labels == np.rint(labels))).all()
    ):
        raise DataError(
            f"the labels are {labels.dtype}", DataEdit("pass class numbers, whole and from 0")
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= n_classes:
        one = low == 1 and high == n_classes
        hint = "labels start at 1: subtract 1" if one else f"pass numbers of 0 to {n_classes - 1}"
        raise DataError(
            f"the labels are {low} to {high}, the model has {n_classes} classes", DataEdit(hint)
        )


def _label_metrics(measured: SampleStatistics, labels: Array, confidence: float) -> list[Metric]:
    check_labels(labels, measured.samples)
    labels = labels.reshape(-1)
    if measured.scores != CLASSES:
        raise DataError(
            "labels need [samples, classes] scores as the first output",
            BY_FUNCTION,
        )
    check_classes(labels, measured.n_classes)
    hits = measured.classes == labels[None, :, None]
    metrics = [make_metric("top-1", hits[:, :, 0], "built in", percent=True, confidence=confidence)]
    if hits.shape[2] == TOP and measured.n_classes > 2 * TOP:
        best = hits.any(2)
        metrics.append(make_metric("top-5", best, "built in", percent=True, confidence=confidence))
    return metrics


def agreement_with_reference(
    measured: SampleStatistics, model: int, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return the share of samples, or of tokens, with the best class of the reference.

    The interval of tokens is that over samples, since tokens of one text depend on each other.
    """
    if measured.scores == CLASSES:
        same = measured.classes[0, :, 0] == measured.classes[model, :, 0]
        return hit_interval(same, confidence)
    if not measured.tokens.sum():
        return None
    if (measured.equal[model] == measured.tokens).all():  # a bootstrap has zero width
        return hit_interval(measured.tokens > 0, confidence)
    sums = np.stack([measured.equal[model], measured.tokens])
    return bootstrap_sums(sums, lambda equal, tokens: equal / tokens, confidence)


def _outcome(measured: SampleStatistics, model: int, labels: Array | None) -> ModelAccuracy:
    errors = measured.errors(model)
    worst = () if model == 0 else _worst(measured, model, labels)
    agreement = agreement_with_reference(measured, model)
    outputs = tuple(map(OutputSqnr, errors.outputs, errors.pooled()))
    total = decibels(float(errors.signal.sum(1).sum()), float(errors.noise.sum(1).sum()))
    tokens = measured.tokens.sum() if measured.scores == NEXT_TOKENS else 0
    kl = float(measured.divergence[model].sum() / tokens) if tokens else None
    return ModelAccuracy(agreement, total, worst, outputs if len(outputs) > 1 else (), kl)


NOISY_DB = 20.0
"""SQNR below which a cause is searched in the inputs."""
OUTSIDE = 0.001
"""Share of input values beyond their range from which they are that cause."""


def _warnings(
    measured: SampleStatistics, models: Sequence[ModelAccuracy], names: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence for each implausible result."""
    broken = (measured.not_finite > 0).sum(1)
    if broken[0]:
        first = "the float model" if len(models) > 1 else "the file"
        yield (
            f"{first} outputs NaN or Inf on {broken[0]} of {measured.samples} samples, "
            "which are left out of the SQNR"
        )
    for i, model in enumerate(models[1:], 1):
        if broken[i] > broken[0]:
            yield (
                f"the outputs of {names[i]} are NaN or Inf on {broken[i]} of "
                f"{measured.samples} samples"
            )
            continue
        outside = float(measured.outside[i].mean())
        noisy = model.sqnr_db is not None and model.sqnr_db < NOISY_DB
        if noisy and outside > OUTSIDE:
            yield (
                f"{formats.share(outside)} of the input values are outside the range that "
                f"{names[i]} was calibrated on; prepare the data as for the calibration, or "
                "calibrate on data like this"
            )
        elif model.sqnr_db is not None and model.sqnr_db < 0:
            yield (
                f"the outputs of {names[i]} have more noise than signal (SQNR "
                f"{model.sqnr_db:.1f} dB): it may be of another network, or of other weights, than "
                "the float model"
            )


def _worst(measured: SampleStatistics, model: int, labels: Array | None) -> tuple[WorstSample, ...]:
    noise, signal = measured.noise[model], measured.signal
    relative = noise / np.maximum(signal, np.finfo(np.float64).tiny)
    classes = measured.classes
    samples = []
    for i in np.argsort(-relative, kind="stable")[:WORST]:
        scored = bool(classes.shape[2])
        samples.append(
            WorstSample(
                int(i),
                decibels(float(signal[i]), float(noise[i])),
                int(classes[0, i, 0]) if scored else None,
                int(classes[model, i, 0]) if scored else None,
                int(labels[i]) if labels is not None and scored else None,
            )
        )
    return tuple(samples)
