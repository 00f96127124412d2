"""Accuracy of several files on the same data: metrics, agreement, error, worst samples.

All of it comes from the numbers per sample that one pass over the data keeps, see `output_pass`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from qtool.core import number_texts
from qtool.core.sqnr import decibels
from qtool.core.types import Array
from qtool.evaluation.measure.output_pass import Agreements
from qtool.metrics.built_in import agreement_with_reference, built_in_metrics
from qtool.metrics.compared_batches import by_values_text
from qtool.metrics.intervals import Interval
from qtool.metrics.labels import no_better_than_a_guess, other_order
from qtool.metrics.metric import Metric
from qtool.metrics.output_agreement import OutputAgreement
from qtool.metrics.regression import targets_of
from qtool.metrics.sample_statistics import (
    AGREEMENTS,
    CLASSES,
    NEXT_TOKENS,
    SampleStatistics,
    check_finite,
)
from qtool.verification.fidelity import OutputSqnr

WORST = 12


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
        yardsticks: what each output agrees in, of outputs that are no scores of classes or tokens,
            or have one class in all samples.
    """

    agreement: Interval | None
    sqnr_db: float | None
    worst: tuple[WorstSample, ...]
    outputs: tuple[OutputSqnr, ...] = ()
    kl: float | None = None
    yardsticks: tuple[OutputAgreement, ...] = ()


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
    agreements: Agreements = Agreements(),  # noqa: B008  # it is frozen
) -> Accuracy:
    """Return metrics, agreement and worst samples.

    Args:
        labels: [samples] class numbers; the first output must then be [samples, classes] scores. Or
            numbers to predict, of the shape of the first output.
        extra: the user's metrics, which come first. With them and without labels the outputs are
            not interpreted as class scores: they may be embeddings, for example.
        names: names of the models, where there are more than two.
        agreements: what outputs agree in, for those that are no scores of classes or tokens.

    Raises:
        DataError: wrong number of labels, labels that are no classes, or the first output is not
            scores; or the reference outputs NaN or Inf on every sample.
    """
    check_finite(measured)
    predicts = targets_of(measured, labels) is not None
    if labels is not None and not predicts:
        measured = measured.with_classes()
    elif predicts or extra or measured.scores != CLASSES:
        measured = measured.without_classes()
    metrics = [*extra, *built_in_metrics(measured, labels)]
    numbers = None if labels is None else np.asarray(labels).reshape(measured.samples, -1)[:, 0]
    models = tuple(_outcome(measured, i, numbers) for i in range(len(measured.noise)))
    scored = measured.outputs[:1] if measured.scores else ()
    models = tuple(
        replace(model, yardsticks=tuple(o for o in own if o.output not in scored or o.caution))
        for model, own in zip(models, agreements.files or [()] * len(models), strict=True)
    )
    named = list(names) or [f"model {i + 1}" for i in range(len(models))]
    if len(models) == 2:
        named[1] = "the quantized model"
    warnings = [*_warnings(measured, models, named)]
    cautions = (each.caution for own in agreements.files for each in own)
    warnings += dict.fromkeys(filter(None, [by_values_text(agreements.left), *cautions]))
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
                f"{number_texts.share(outside)} of the input values are outside the range that "
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
