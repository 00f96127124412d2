"""What is measured of the layers of a quantized model; `evaluation.sensitivity` measures it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HistogramFacts:
    """A histogram with the quantized range.

    Attributes:
        start, stop: ends of the histogram.
        counts: elements in equal bins.
        least, most: smallest and largest value.
        low, high: quantized range; per channel, that of the widest channel.
        low_least, high_least: that of the narrowest channel.
        clipped: share of elements that saturate: more than half a step outside the range.
    """

    start: float
    stop: float
    counts: tuple[int, ...]
    least: float
    most: float
    low: float
    high: float
    low_least: float
    high_least: float
    clipped: float


@dataclass(frozen=True)
class LayerError:
    """Errors of one layer, as SQNR in dB; None if there is no error.

    Attributes:
        alone_db: SQNR of the layer's output, on float inputs.
        accumulated_db: SQNR of the same tensor in the quantized network.
        only_db: SQNR of the outputs when only this layer is quantized.
        only_share: that error divided by the error of the whole quantized network: geometric mean
            over samples, so that an outlier does not dominate.
        left_db: SQNR of the outputs when only this layer is in float.
        gain_db: left_db minus the SQNR of the whole quantized network.
        samples: number of samples that this layer was measured on.
        activation, weight: histograms with the quantized range.
    """

    name: str
    op: str
    tensor: str
    macs: int
    alone_db: float | None
    accumulated_db: float | None
    only_db: float | None
    only_share: float
    left_db: float | None
    gain_db: float | None
    samples: int
    activation: HistogramFacts | None
    weight: HistogramFacts | None


@dataclass(frozen=True)
class Sensitivity:
    """output_db: SQNR of the simulated quantized network's outputs. evaluations: what the sweep is
    reckoned to cost, in float runs over the samples."""

    samples: int
    output_db: float | None
    evaluations: float
    layers: tuple[LayerError, ...]
