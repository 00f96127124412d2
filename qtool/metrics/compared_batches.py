"""Outputs of two models, batch by batch, from which their agreement follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qtool.core.output_evidence import BY_VALUES, Evidence
from qtool.core.types import Array
from qtool.metrics.output_agreement import (
    OutputAgreement,
    output_agreements,
)
from qtool.metrics.output_errors import OutputErrors, samples_first

# Outputs whose rows values decide: left out where their number does, matched where TopK selects.
#
# A detector that keeps its best queries gives them in an order that the last bit of a score
# changes. So the rows of a sample are a set: each of the float model's is compared with the one
# of the quantized model that is nearest to it, over all outputs of these rows.


def by_values(names: Sequence[str], evidence: Mapping[str, Evidence]) -> list[str]:
    """Return the outputs whose number of rows depends on values: nothing compares them."""
    return [name for name in names if evidence.get(name, Evidence()).rows == BY_VALUES]


def by_values_text(names: Sequence[str]) -> str:
    """Return a sentence on outputs of `by_values`; "" without any."""
    each = ", ".join(f"'{name}'" for name in names)
    return f"values decide how many rows {each} has, so that rows are not compared" if each else ""


def compared_outputs(
    names: Sequence[str],
    real: Sequence[Array],
    quantized: Sequence[Array],
    evidence: Mapping[str, Evidence],
) -> tuple[list[str], list[Array], list[Array]]:
    """Return what can be compared value by value: names, float and quantized outputs.

    Args:
        names: names of the outputs.
        real: outputs of the float model for a batch.
        quantized: those of the quantized model.
        evidence: output -> what is known of it.
    """
    left = by_values(names, evidence)
    kept = [i for i, name in enumerate(names) if name not in left]
    own, a, b = [names[i] for i in kept], [real[i] for i in kept], [quantized[i] for i in kept]
    counts = [evidence.get(name, Evidence()).rows for name in own]
    chosen = [
        i
        for i, (count, x, y) in enumerate(zip(counts, a, b, strict=True))
        if count and x.ndim > 1 and x.shape[1] == count and x.shape == y.shape
    ]
    if any(a[i].ndim == 3 for i in chosen):
        for i, matched in zip(
            chosen, matched_rows([a[i] for i in chosen], [b[i] for i in chosen]), strict=True
        ):
            b[i] = matched
    return own, a, b


def matched_rows(real: Sequence[Array], quantized: Sequence[Array]) -> list[Array]:
    """Return quantized outputs with their rows in the order of the float model's.

    Args:
        real: outputs [samples, rows, ...] of the same rows.
        quantized: those of the quantized model, of the same shapes.
    """
    scales = [float(a.std()) or 1.0 for a in real]
    first, second = (
        np.concatenate(
            [
                np.nan_to_num(a.astype(np.float64)).reshape(*a.shape[:2], -1) / s
                for a, s in zip(side, scales, strict=True)
            ],
            2,
        )
        for side in (real, quantized)
    )
    orders = [_order(*pair) for pair in zip(first, second, strict=True)]
    return [np.stack([s[o] for s, o in zip(b, orders, strict=True)]) for b in quantized]


def _order(real: Array, quantized: Array) -> Array:
    """Return the row of the quantized model for each row of the float model: again and again the
    pairs of which each is the nearest of the other. real, quantized: [rows, values]."""
    powers = np.square(real).sum(1)[:, None] + np.square(quantized).sum(1)
    distances = powers - 2 * real @ quantized.T
    order, rows, columns = np.zeros(len(real), np.int64), np.arange(len(real)), np.arange(len(real))
    while len(rows):
        left = distances[np.ix_(rows, columns)]
        nearest = left.argmin(1)
        mutual = left.argmin(0)[nearest] == np.arange(len(rows))
        order[rows[mutual]] = columns[nearest[mutual]]
        columns = np.delete(columns, nearest[mutual])
        rows = rows[~mutual]
    return order


Arrays = Sequence[Array]

COMPARED = 1 << 25  # values of outputs that agreements are measured on
_KV_CACHE_PREFIX = "present"  # of outputs


def is_cache(name: str) -> bool:
    """Return whether an output is a KV cache, which the outputs that read it judge."""
    return name.startswith(_KV_CACHE_PREFIX)


class ComparedBatches:
    """Outputs that can be compared, kept up to `COMPARED` values.

    Attributes:
        names: names of these outputs.
        left: names of those whose rows values decide.
    """

    def __init__(
        self, names: Sequence[str], evidence: Mapping[str, Evidence], room: int = COMPARED
    ) -> None:
        self.left = by_values(names, evidence)
        self.names = [name for name in names if name not in self.left]
        self._all, self._evidence, self._room = tuple(names), evidence, room
        self._batches: list[tuple[list[Array], list[Array]]] = []
        self._more: list[list[Array]] = []

    def add(self, real: Arrays, quantized: Arrays, samples: int) -> OutputErrors:
        """Keep the outputs of a batch, and return their errors.

        Args:
            real: all outputs of the float model, zero at padded positions.
            quantized: those of the quantized model.
            samples: number of samples.
        """
        _, expected, actual = compared_outputs(self._all, real, quantized, self._evidence)
        self._room -= sum(a.size for a in expected)
        if self._room >= 0 or not self._batches:
            sides = ([samples_first(a, samples) for a in side] for side in (expected, actual))
            first, second = sides
            self._batches.append((first, second))
        return OutputErrors.of(self.names, expected, actual, samples)

    def add_float(self, real: Arrays, samples: int) -> None:
        """Keep the outputs of the float model for samples that the quantized one was made of.

        Args:
            real: as of `add`.
            samples: number of samples.
        """
        own = [a for name, a in zip(self._all, real, strict=True) if name in self.names]
        self._room -= sum(a.size for a in own)
        if self._room >= 0:
            self._more.append([samples_first(a, samples) for a in own])

    def agreements(self) -> tuple[OutputAgreement, ...]:
        """Return what the batches agree in, of each output that has a yardstick; no KV cache,
        whose codes differ by one everywhere and mean the same."""
        kept = [i for i, name in enumerate(self.names) if not is_cache(name)]
        more = [_joined([b[i] for b in self._more]) for i in kept] if self._more else []
        return output_agreements(*self._joined(kept), self._evidence, more)

    def _joined(self, kept: Sequence[int]) -> tuple[list[str], list[Array], list[Array]]:
        sides = ([_joined([b[side][i] for b in self._batches]) for i in kept] for side in (0, 1))
        first, second = sides
        return [self.names[i] for i in kept], first, second


def _joined(arrays: Sequence[Array]) -> Array:
    """Return the output of several batches: texts of other lengths as one, else the first."""
    first = arrays[0]
    if first.ndim and len({a.shape[1:] for a in arrays}) == 1:
        return np.concatenate(arrays)
    if first.ndim == 3 and len({a.shape[2:] for a in arrays}) == 1:
        return np.concatenate([a.reshape(1, -1, a.shape[2]) for a in arrays], 1)
    return first
