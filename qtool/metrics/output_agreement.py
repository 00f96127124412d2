"""What quantization changes in the outputs for a user, without labels: a yardstick per output.

SQNR counts every value alike. A recogniser at 17 dB may read the same texts, and one at 25 dB of
scores that hardly differ may not. So each output is also compared by what it is used for, see
`output_kind`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from qtool.core import number_texts
from qtool.core.output_evidence import Evidence
from qtool.core.types import Array
from qtool.metrics.expected_agreement import (
    expected_same_class,
    expected_same_decision,
    expected_same_text,
    log_probabilities,
)
from qtool.metrics.output_kind import (
    CLASS,
    COSINE,
    DECISION,
    DETECTION,
    EQUAL,
    LIMIT,
    NUMBERS,
    PIXEL,
    TEXT,
    THRESHOLD,
    TOKEN,
    detections,
    output_kind,
    sums_to_one,
)
from qtool.metrics.sample_ratios import below_one_interval, clustered_share_interval
from qtool.metrics.texts import blank_of, same_texts
from qtool.metrics.token_scores import divergences


class Yardstick(NamedTuple):
    """How a kind of output is judged.

    Attributes:
        text: sentence for a summary, with the value formatted.
        good: agreement from which a low SQNR costs the task nothing.
        poor: agreement below which the output is hardly of use.
    """

    text: str
    good: float
    poor: float


YARDSTICKS = {
    CLASS: Yardstick("same class {share}", 0.95, 0.8),
    TOKEN: Yardstick("same token {share}", 0.95, 0.8),
    TEXT: Yardstick("same text {share}", 0.9, 0.5),  # a text has many tokens
    PIXEL: Yardstick("same class of pixels {share}", 0.95, 0.8),
    THRESHOLD: Yardstick("F1 of values above {threshold:g} {share}", 0.95, 0.8),
    DECISION: Yardstick("same decision at {threshold:g} {share}", 0.95, 0.8),
    COSINE: Yardstick("cosine {value:.4f}", 0.99, 0.9),
    NUMBERS: Yardstick("R2 {value:.4f}", 0.98, 0.8),
    DETECTION: Yardstick("F1 of detections above {threshold:g} {share}", 0.95, 0.8),
    EQUAL: Yardstick("{share} equal", 0.95, 0.8),
}

NEAR, NEAR_KL = 0.99, 0.01
"""Agreement from which an output counts as that of the float model, or divergence of tokens in nats
up to which it does: that is one percent of perplexity."""
GOOD_KL, POOR_KL = 0.2, 0.5
"""Mean divergence of tokens in nats. Language models with 4-bit weights are judged by it: up to the
first, which nearest rounding of a small one keeps, other best tokens are close calls (perplexity
grows by a few percent); above the second, where 2-bit weights are without training, texts fall
apart."""
ENOUGH = 16  # compared samples, tokens or values, to judge an output by them
_DECIDING = 2**22  # values that decide on the kind of an output
_CHUNK = 256  # rows
_LEAST_SPREAD = 1e-10  # of the power: below, numbers are constant but for rounding


class OutputAgreement(NamedTuple):
    """How far the quantized model does with one output what the float model does.

    Attributes:
        output: its name.
        kind: CLASS, TOKEN, TEXT, PIXEL, THRESHOLD, DECISION, COSINE, NUMBERS, DETECTION or EQUAL.
        value: share of equal classes or values, F1, mean cosine or share of the variance that is
            kept, R2; 1 is equal.
        compared: number of samples, tokens, texts, pixels, values, vectors or detections; 0 where
            the samples do not show what an output tells, see `caution`.
        threshold: limit of THRESHOLD, 0.5 or 0 for logits, of DECISION and of DETECTION.
        kl: mean Kullback-Leibler divergence from the float model in nats, of TOKEN; None of others.
        interval: ends of the 95 % interval of the value over new samples; None for one sample.
        shift: mean difference from the float model's scores where those are above the limit, of
            DETECTION; None of others.
        tokens: share of equal tokens, of TEXT; None of others.
        expected: share of equal classes, texts or decisions to expect of new samples where samples
            are few, see `expected_agreement`; None of others.
    """

    output: str
    kind: str
    value: float
    compared: int
    threshold: float = 0.0
    kl: float | None = None
    interval: tuple[float, float] | None = None
    shift: float | None = None
    tokens: float | None = None
    expected: float | None = None

    @property
    def on_new(self) -> float:
        """The value to expect of new samples."""
        return self.value if self.expected is None else self.expected

    @property
    def headline(self) -> str:
        """The value to expect alone, in words."""
        if self.expected is not None:
            return f"same {self.kind} {number_texts.share(self.expected)} expected"
        return str(self._replace(kl=None, shift=None, tokens=None))

    @property
    def is_near(self) -> bool:
        """Whether the output hardly differs in what it is used for."""
        close = self.kl is not None and self.kl <= NEAR_KL
        return close or self.on_new >= NEAR

    @property
    def keeps_numbers(self) -> bool:
        """Whether numbers keep so much of their variance that the SQNR may excuse the rest."""
        return self.kind == NUMBERS and self.value >= YARDSTICKS[NUMBERS].good

    @property
    def is_good(self) -> bool:
        """Whether a low SQNR of this output costs the task nothing."""
        close = self.kl is not None and self.kl <= GOOD_KL
        return self.compared >= ENOUGH and (close or self.value >= YARDSTICKS[self.kind].good)

    @property
    def is_poor(self) -> bool:
        """Whether this output is hardly of use."""
        far = self.kl is None or self.kl > POOR_KL
        known = self.compared >= ENOUGH and not self.is_good
        return known and far and self.value < YARDSTICKS[self.kind].poor

    @property
    def is_constant(self) -> bool:
        """Whether numbers are the same in all samples."""
        return self.kind == NUMBERS and not self.compared

    @property
    def caution(self) -> str:
        """Why the samples do not show whether the output is right; "" where they do."""
        if self.compared:
            return ""
        if self.kind != THRESHOLD:
            return f"'{self.output}' has {self}, so that equal ones prove little"
        above = f"a value of '{self.output}' above {self.threshold:g}"
        return f"no sample has {above}, so that none shows what it detects"

    def __str__(self) -> str:
        if not self.compared:
            if self.kind != THRESHOLD:
                return f"one {'value' if self.kind in (EQUAL, NUMBERS) else 'class'} in all samples"
            who = "no value" if self.value else "the quantized model alone has values"
            return f"{who} above {self.threshold:g}"
        value = min(self.value, 0.9999) if self.value < 1 else 1.0  # 1 only if it is
        text = YARDSTICKS[self.kind].text.format(
            share=number_texts.share(self.value), value=value, threshold=self.threshold
        )
        return f"{text}{self._more()}"

    def with_interval(self) -> str:
        """Return the text of a summary: the value, its interval, and the divergence or shift."""
        text = self._replace(expected=None).headline
        if self.interval is not None:
            exact = self.kind in (COSINE, NUMBERS)
            ends = (min(e, 0.9999) if e < 1 else 1.0 for e in self.interval)
            low, high = (f"{e:.4f}" if exact else f"{100 * e:.3g}" for e in ends)
            if low != high:
                text += f" ({low} to {high}{'' if exact else ' %'})"
        return f"{text}{self._more()}"

    def _more(self) -> str:
        if self.shift is not None:
            return f", their scores {self.shift:+.3f}"
        text = "" if self.kl is None else f", KL divergence {self.kl:.2g}"
        if self.tokens is not None:
            text = f", same token {number_texts.share(self.tokens)}"
        if self.expected is not None and self.compared:
            text += f", {number_texts.share(self.expected)} expected"
        return text


def agreements_text(agreements: Sequence[OutputAgreement], several: bool) -> str:
    """Return what outputs agree in, with their names where there are several."""
    return ", ".join(
        f"{each.output}: {each.with_interval()}" if several else each.with_interval()
        for each in agreements
    )


def output_agreement(
    name: str,
    real: Array,
    quantized: Array,
    evidence: Evidence = Evidence(),  # noqa: B008  # it is frozen
    more: Array | None = None,
) -> OutputAgreement | None:
    """Return the agreement of one output; None where no yardstick fits or nothing can differ.

    Args:
        name: name of the output.
        real: output of the float model, [samples, ...].
        quantized: output of the quantized model, of the same shape.
        evidence: what is known of the output besides its values.
        more: output of the float model on samples that the quantized model was made of.
    """
    if real.shape != quantized.shape or not real.ndim or not real.size:
        return None
    if real.dtype.kind in "iub":
        blank = blank_of(real, 1 + int(real.max())) if len(real) > 1 else None
        texts = None if blank is None else _same_texts(name, real, quantized, blank)
        return texts or _same_values(name, EQUAL, real, quantized, np.ones(real.shape, bool))
    if real.dtype.kind != "f":
        return None
    a = real.reshape(len(real), -1) if real.ndim == 1 else real
    b = quantized.reshape(a.shape)
    if not np.isfinite(a).all():
        return None
    kind = output_kind(name, a[: max(1, _DECIDING // a[0].size)], evidence)
    if kind is None:
        return None
    if kind.kind in (CLASS, TOKEN, PIXEL):
        moved = np.moveaxis(a, kind.axis, -1), np.moveaxis(b, kind.axis, -1)
        return _same_classes(name, *moved, more if kind.kind == CLASS else None)
    if kind.kind == DETECTION:
        return _same_detections(name, a, b)
    if kind.kind == DECISION:
        decided = _same_values(name, DECISION, a > 0.5, b > 0.5, np.ones(a.shape, bool))
        expected = expected_same_decision(a, b, more)
        return decided._replace(threshold=kind.threshold, expected=expected)
    if kind.kind == THRESHOLD:
        return _overlap(name, a, b, kind.threshold)
    if kind.kind == COSINE:
        flat = (len(a), -1) if a.ndim == 4 else a.shape  # one position of an image is a vector
        return _same_direction(name, a.reshape(flat), b.reshape(flat))
    return _kept_spread(name, a, b)


def output_agreements(
    names: Sequence[str],
    real: Sequence[Array],
    quantized: Sequence[Array],
    evidence: Mapping[str, Evidence],
    more: Sequence[Array] = (),
) -> tuple[OutputAgreement, ...]:
    """Return the agreement of each output that has a yardstick; of constants if all are.

    Args:
        names: names of the outputs.
        real: outputs of the float model.
        quantized: outputs of the quantized model.
        evidence: output -> what is known of it besides its values.
        more: outputs of the float model on samples that the quantized model was made of.
    """
    facts = [evidence.get(name, Evidence()) for name in names]
    with np.errstate(over="ignore", invalid="ignore"):  # values near the end of float32
        rest: Sequence[Array | None] = more or [None] * len(names)
        each = list(map(output_agreement, names, real, quantized, facts, rest))
    known = [agreement for agreement in each if agreement is not None]
    return tuple(agreement for agreement in known if not agreement.is_constant) or tuple(known)


def _same_classes(name: str, a: Array, b: Array, more: Array | None) -> OutputAgreement | None:
    """Return the share of equal best classes of scores [..., classes], or of equal texts; rows of
    zeros are padding, None where there are no others. more: see `output_agreement`."""
    rows, real, coded = np.asarray(a.any(-1)), _best(a), _best(b)
    if not rows.any():
        return None
    blank = blank_of(real, a.shape[-1]) if a.ndim == 3 and len(a) > 1 else None
    if blank is not None:
        texts = _same_texts(name, real, coded, blank)
        return texts._replace(expected=expected_same_text(a, b, blank, texts.value))
    kind = {2: CLASS, 3: TOKEN, 4: PIXEL}[a.ndim]
    kl = _divergence(a[rows], b[rows]) if kind == TOKEN else None
    expected = expected_same_class(a[rows], b[rows], more) if kind == CLASS else None
    return _same_values(name, kind, real, coded, rows)._replace(kl=kl, expected=expected)


def _same_values(name: str, kind: str, a: Array, b: Array, rows: Array) -> OutputAgreement:
    """Return the share of equal whole numbers [samples, ...] where `rows` is True."""
    equal, value = (a == b) & rows, float((a == b)[rows].mean())
    first = a[rows][0]
    if (a[rows] == first).all() and (b[rows] == first).all():
        return OutputAgreement(name, kind, value, 0)
    interval = clustered_share_interval(*_by_sample(equal, rows))
    return OutputAgreement(name, kind, value, int(rows.sum()), interval=interval)


def _best(a: Array) -> Array:
    """Return the best class of scores [..., classes]; -1 where they are not finite."""
    best: Array = np.where(np.isfinite(a).all(-1), a.argmax(-1), -1)
    return best


def _same_texts(name: str, labels: Array, others: Array, blank: int) -> OutputAgreement:
    """Return the share of equal texts. labels, others: [samples, positions]."""
    same, tokens = same_texts(labels, others, blank), float((labels == others).mean())
    interval = clustered_share_interval(same.astype(np.float64), np.ones(len(same)))
    value = float(same.mean())
    return OutputAgreement(name, TEXT, value, len(same), interval=interval, tokens=tokens)


def _by_sample(values: Array, counts: Array) -> tuple[Array, Array]:
    """Return the sums over each sample; of one long text, the values of each position."""
    size = values.size if len(values) == 1 else len(values)
    first, second = (a.astype(np.float64).reshape(size, -1).sum(1) for a in (values, counts))
    return first, second


def _divergence(a: Array, b: Array) -> float:
    """Return the mean divergence of [rows, classes] scores in nats."""
    is_share, total = sums_to_one(a[:_CHUNK], -1), 0.0
    for start in range(0, len(a), _CHUNK):  # a vocabulary is large
        some = (x[start : start + _CHUNK].astype(np.float64) for x in (a, b))
        each = divergences(*(log_probabilities(x, is_share) for x in some))
        total += float(np.where(np.isfinite(each), each, np.inf).sum())
    return total / len(a)


def _overlap(name: str, a: Array, b: Array, threshold: float) -> OutputAgreement:
    """Return the F1 of the values above a threshold; the share of equal ones hides rare ones."""
    above, other = a > threshold, b > threshold
    if not above.any():
        value = 0.0 if other.any() else 1.0
        return OutputAgreement(name, THRESHOLD, value, 0, threshold)
    f1, interval = _f1(above, other, above & other)
    return OutputAgreement(name, THRESHOLD, f1, a.size, threshold, interval=interval)


def _same_detections(name: str, a: Array, b: Array) -> OutputAgreement:
    """Return the F1 of the positions with a score above the limit and the same best class."""
    (real, label), (score, other_label) = detections(a, a), detections(np.nan_to_num(b), a)
    above, other = real > LIMIT, score > LIMIT
    f1, interval = _f1(above, other, above & other & (label == other_label))
    shift, count = float((score - real)[above].mean()), int(above.sum())
    return OutputAgreement(name, DETECTION, f1, count, LIMIT, interval=interval, shift=shift)


def _f1(above: Array, other: Array, both: Array) -> tuple[float, tuple[float, float] | None]:
    hits, counts = _by_sample(2 * both, above.astype(np.int8) + other)
    return float(hits.sum() / counts.sum()), clustered_share_interval(hits, counts)


def _same_direction(name: str, a: Array, b: Array) -> OutputAgreement | None:
    """Return the mean cosine of vectors [..., width]; vectors of zeros are padding."""
    rows = np.asarray(a.any(-1))
    if not rows.any():
        return None
    x, y = a.astype(np.float64), np.nan_to_num(b.astype(np.float64))
    norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    cosines = np.where(rows, (x * y).sum(-1) / np.maximum(norms, np.finfo(np.float64).tiny), 0)
    interval = below_one_interval(*_by_sample(cosines, rows), least=-1.0)
    value = float(cosines[rows].mean())
    return OutputAgreement(name, COSINE, value, int(rows.sum()), interval=interval)


def _kept_spread(name: str, a: Array, b: Array) -> OutputAgreement:
    """Return the share of the variance over samples that is kept, R2 of the float numbers by the
    quantized ones; they may not vary. Of one sample it is that over its positions."""
    x, y = a.astype(np.float64), np.nan_to_num(b.astype(np.float64))
    rows = len(x) if len(x) > 1 else int(np.prod(x.shape[:-1]))
    x, y = x.reshape(rows, -1), y.reshape(rows, -1)
    spread = np.square(x - x.mean(0)).sum(1) * rows / max(rows - 1, 1)
    if spread.sum() <= _LEAST_SPREAD * np.square(x).sum():
        return OutputAgreement(name, NUMBERS, float(np.isfinite(b).all()), 0)
    kept = spread - np.square(x - y).sum(1)
    value = float(kept.sum() / spread.sum())
    return OutputAgreement(name, NUMBERS, value, rows, interval=below_one_interval(kept, spread))
