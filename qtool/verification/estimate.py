"""The accuracy that is to be expected on new data, from the errors of samples.

A sum over all samples is decided by the few with the largest errors. The headline is therefore the
median over samples, with an interval; the sum stands next to it, and the samples that decide it
are named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from qtool.core import number_texts
from qtool.core.records import JsonRecord
from qtool.core.sqnr import NO_SIGNAL_DB
from qtool.core.types import Array
from qtool.metrics.intervals import FEWEST, median_interval
from qtool.metrics.output_agreement import OutputAgreement
from qtool.metrics.output_errors import OutputErrors, finite_or_inf

CONFIDENCE = 0.95
ESTIMATE, CALIBRATION = "estimate", "calibration"
"""Kinds of samples: held out of everything in the file, or what the file was made of."""

FIRST = 4
"""Tokens of a text whose errors are shown on their own: all others attend to them, and they often
have far larger values."""

BEYOND = 1.1  # times a calibrated range: new samples leave it
NEARER = 1.4  # times their own ranges that those of the calibration reach, in the median tensor
_FEW = 20  # samples that show no rare ones
_FEW_SHARE = 0.05  # of the samples
_DECISIVE = 0.5  # share of the error that so few samples have, to say so
_UNSURE = 0.5  # relative standard error of the pooled error, to say so
_ROUGH = 0.25  # likewise, to give no tenth of a dB: new samples differ by a dB or more
_NORMAL_QUARTILES = 1.349  # standard deviations between the quartiles of a normal distribution
_MOST_DEVIATION = 10.0  # of the logarithms, which the exponential function can take
_NAMED = 3  # samples in a sentence
_SHOWN = 4  # outputs in a row


class OutputEstimate(NamedTuple):
    """Errors of one output in dB; None without noise.

    Attributes:
        output: its name.
        median_db: median over samples.
        low_db: lower end of the interval of the median.
        high_db: its upper end.
        pooled_db: power over all samples.
        worst_db: error of the worst sample.
    """

    output: str
    median_db: float | None
    low_db: float | None
    high_db: float | None
    pooled_db: float | None
    worst_db: float | None


class Reach(NamedTuple):
    """How many times its calibrated range new samples reach in a tensor."""

    tensor: str
    factor: float


class CostlySample(NamedTuple):
    """A sample with a large part of the error.

    Attributes:
        sample: where it is, as "batch 3, row 5".
        share: its part of the error, 0 to 1.
        reason: what is extreme in it, or "".
    """

    sample: str
    share: float
    reason: str


class InBatches(NamedTuple):
    """The median of the errors where samples ran in batches, which share their scales.

    Attributes:
        size: samples of a batch.
        median_db: median of the output with the lowest; None without noise.
    """

    size: int
    median_db: float | None


@dataclass(frozen=True)
class Estimate(JsonRecord):
    """Errors of all outputs on samples, as they are to be expected on new data.

    Attributes:
        samples: number of samples.
        kind: `ESTIMATE` or `CALIBRATION`.
        outputs: estimates in the order of the model's outputs.
        place: what ran the file, if it is not the runtime of its target; "" otherwise.
        batch: samples that ran at once, where the activations of a batch share their scales; 0
            otherwise.
        in_batches: the same in batches, where `batch` is 1; None otherwise.
        costly: the samples that decide the pooled error, if few do.
        clipped: share of the values of inputs and outputs beyond their ranges, 0 to 1.
        beyond: tensor -> how many times its calibrated range these samples reach, the furthest
            first; of tensors that they leave by more than `BEYOND`.
        reach: how many times their own ranges the calibrated ones are, in the median tensor; 0 if
            that is not known. Far above 1, rare samples are missing here.
        loud: share of the signal in the loudest samples, one in twenty, of the output where it is
            largest, 0 to 1.
        unsure: relative standard error of the pooled error of the lowest output: that of the
            samples, or, if it is larger, that of a log-normal distribution with their middle half.
        agreements: what changes for a user, of each output that has a yardstick.
        by_batch: the errors of single samples are not known, since an output does not have one row
            for each; medians are then those of batches, without an interval.
        cached: tokens of each sample that are in its KV cache, computed in float, which no figure
            counts.
        first_db: median error of the first `FIRST` tokens of each text, which often have the
            largest; None of models without a KV cache, and without noise.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = (
        "median_db",
        "interval_db",
        "pooled_db",
        "worst_db",
        "caution",
    )

    samples: int
    kind: str
    outputs: tuple[OutputEstimate, ...]
    place: str = ""
    batch: int = 0
    in_batches: InBatches | None = None
    costly: tuple[CostlySample, ...] = ()
    clipped: float = 0.0
    beyond: tuple[Reach, ...] = ()
    reach: float = 0.0
    loud: float = 0.0
    unsure: float = 0.0
    agreements: tuple[OutputAgreement, ...] = ()
    by_batch: bool = False
    cached: int = 0
    first_db: float | None = None

    @property
    def lowest(self) -> OutputEstimate | None:
        """The output with the lowest median; None without float outputs."""
        return min(self.outputs, key=lambda o: finite_or_inf(o.median_db), default=None)

    @property
    def median_db(self) -> float | None:
        return self.lowest and self.lowest.median_db

    @property
    def interval_db(self) -> tuple[float | None, float | None]:
        return (self.lowest.low_db, self.lowest.high_db) if self.lowest else (None, None)

    @property
    def pooled_db(self) -> float | None:
        return self.lowest and self.lowest.pooled_db

    @property
    def worst_db(self) -> float | None:
        return self.lowest and self.lowest.worst_db

    @property
    def source(self) -> str:
        """The number and kind of the samples, in words."""
        kind = "held-out sample" if self.kind == ESTIMATE else "calibration sample"
        later = f", from token {self.cached + 1} on" if self.cached else ""
        batch = f", batch {self.batch}" if self.batch > 1 else " one by one" if self.batch else ""
        return f"{number_texts.quantity(self.samples, kind)}{batch}{later}"

    def text(self, outputs: Sequence[OutputEstimate]) -> str:
        """Return the figures of some outputs for a summary."""
        place = f"; in {self.place}" if self.place else ""
        if self.first_db is not None:
            place += f"; first {FIRST} tokens {_db(self.first_db)}"
        if self.in_batches is not None:
            place += f"; in batches of {self.in_batches.size} {_db(self.in_batches.median_db)}"
        if len(outputs) == 1:
            (one,) = outputs
            spread = (
                f", {self._spread(one)}" if self.samples > 1 and one.median_db is not None else ""
            )
            what = "median of " if self.samples > 1 else ""
            if self.by_batch:
                return f"{_db(one.median_db)} ({self.source}, batch by batch{place})"
            return f"{_db(one.median_db)} ({what}{self.source}{spread}{place})"
        lowest = sorted(outputs, key=lambda o: finite_or_inf(o.median_db))[:_SHOWN]
        shown = ", ".join(f"{o.output} {_db(o.median_db)}" for o in outputs if o in lowest)
        more = f" and {len(outputs) - _SHOWN} more" if len(outputs) > _SHOWN else ""
        if self.by_batch:
            return f"{shown}{more} ({self.source}, batch by batch{place})"
        low = lowest[0]
        spread = f"; {low.output}: {self._spread(low)}" if self.samples > 1 else ""
        return f"{shown}{more} (medians of {self.source}{spread}{place})"

    def _spread(self, each: OutputEstimate) -> str:
        share = "95 % interval " if self.samples >= FEWEST else ""
        between = f"{share}{_bare(each.low_db)} to {_bare(each.high_db)}"
        pooled = _bare(each.pooled_db)
        if each.pooled_db is not None and (self.unsure > _ROUGH or self.caution):
            pooled = f"at most {math.ceil(each.pooled_db)}"
        return f"{between}; pooled {pooled}, worst {_bare(each.worst_db)}"

    @property
    def caution(self) -> str | None:
        """A sentence on the samples that decide or may decide the pooled error; None if many do."""
        if not self.costly:
            doubt = self._doubt()
            return doubt and f"few samples may decide the error over all: {doubt}"
        share = sum(each.share for each in self.costly)
        count = number_texts.quantity(len(self.costly), "sample")
        names = "; ".join(
            f"{each.sample}{': ' if each.reason else ''}{each.reason}"
            for each in self.costly[:_NAMED]
        )
        return (
            f"few samples decide the error over all: {count} of {self.samples} "
            f"{'has' if len(self.costly) == 1 else 'have'} {number_texts.percent(share)} of it "
            f"({names})"
        )

    def _doubt(self) -> str | None:
        """Return why rare samples that are not among these may decide the pooled error."""
        if self.beyond:
            name, factor = self.beyond[0]
            return (
                f"new ones leave the calibrated ranges of "
                f"{number_texts.quantity(len(self.beyond), 'tensor')}, '{name}' by a factor of "
                f"{factor:.2f}, and rare ones go further; calibrate on more data, or check its "
                "extremes"
            )
        if self.kind == CALIBRATION:
            return f"none of {self.source} was held out, and new ones may do worse; give more data"
        if self.reach > NEARER:
            return (
                f"the ranges of the calibration reach {self.reach:.1f} times as far as those of "
                f"{self.source}, so that rare ones are missing here; give more data"
            )
        if self.samples < _FEW:
            return f"rare ones are not among {self.source}; give more data"
        if self.loud >= _DECISIVE:
            return (
                f"{number_texts.percent(self.loud)} of the signal is in the loudest "
                f"{number_texts.quantity(_few_of(self.samples), 'sample')} of {self.source}"
            )
        if self.unsure > _UNSURE:
            return (
                f"the errors of {self.source} differ so much that rare ones weigh as much as all "
                "of these"
            )
        return None


def estimate_outputs(
    errors: OutputErrors, kind: str, samples: Sequence[str] = (), reasons: Sequence[str] = ()
) -> Estimate:
    """Return what errors say of new data.

    Args:
        errors: errors of all samples.
        kind: role of the samples, as in `Estimate`.
        samples: where each sample is.
        reasons: what is extreme in each sample.
    """
    each, pooled = errors.by_sample(), errors.pooled()
    outputs, by_batch = [], each.shape[1] < errors.samples
    for k, name in enumerate(errors.outputs):
        if np.isnan(errors.noise[k]).any():  # values decide its shape
            continue
        low_end, high_end = (math.inf, math.inf) if by_batch else median_interval(each[k])
        middle, low, high, worst = map(
            _none_if_inf, (float(np.median(each[k])), low_end, high_end, float(each[k].min()))
        )
        outputs.append(OutputEstimate(name, middle, low, high, pooled[k], worst))
    costly = () if by_batch else _costly(errors.relative(), samples, reasons)
    loud = 0.0 if by_batch else _loud(errors.signal)
    estimate = Estimate(
        errors.samples, kind, tuple(outputs), costly=costly, loud=loud, by_batch=by_batch
    )
    if estimate.lowest is None:
        return estimate
    unsure = _standard_error(errors.noise[errors.outputs.index(estimate.lowest.output)])
    return replace(estimate, unsure=unsure)


def _standard_error(noise: Array) -> float:
    """Return the relative standard error of a mean: that of its values or, if it is larger, that of
    log-normal ones, whose logarithms have the standard deviation of their middle half. noise:
    [samples], at least 0."""
    known = noise[np.isfinite(noise) & (noise > 0)]
    logarithms = np.log(known)
    if len(known) < 2:
        return 0.0
    own = float(known.std(ddof=1) / known.mean()) / math.sqrt(len(known))
    low, high = np.percentile(logarithms, (25, 75))
    deviation = min(float(high - low) / _NORMAL_QUARTILES, _MOST_DEVIATION)
    return max(own, math.sqrt(math.expm1(deviation**2) / len(noise)))


def _few_of(count: int) -> int:
    """Return how many samples are few, of so many."""
    return max(1, int(_FEW_SHARE * count))


def _loud(signal: Array) -> float:
    """Return the largest share of an output's power in few samples. signal: [outputs, samples]."""
    few, total = _few_of(signal.shape[1]), signal.sum(1)
    largest = np.sort(signal, 1)[:, -few:].sum(1)
    shares = np.divide(largest, total, out=np.zeros_like(total), where=total > 0)
    return float(np.nan_to_num(shares).max(initial=0.0))


def _costly(
    shares: Array, samples: Sequence[str], reasons: Sequence[str]
) -> tuple[CostlySample, ...]:
    few = _few_of(len(shares))
    largest = np.argsort(-shares, kind="stable")[:few]
    if len(shares) < 2 / _FEW_SHARE or shares[largest].sum() < _DECISIVE:
        return ()
    decisive = np.cumsum(shares[largest]).searchsorted(_DECISIVE) + 1
    return tuple(
        CostlySample(
            samples[i] if i < len(samples) else f"sample {i}",
            float(shares[i]),
            reasons[i] if i < len(reasons) else "",
        )
        for i in largest[:decisive].tolist()
    )


def _none_if_inf(value: float) -> float | None:
    return None if value == math.inf else value


def _bare(value: float | None) -> str:
    return "no noise" if value is None else f"{value:.1f}"


def _db(value: float | None) -> str:
    if value is None:
        return "no noise"
    return "no signal" if value == NO_SIGNAL_DB else f"{value:.1f} dB"
