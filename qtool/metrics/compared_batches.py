"""Outputs of two models, batch by batch, from which their agreement follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qtool.core.output_evidence import Evidence
from qtool.core.types import Array
from qtool.metrics.matched_rows import by_values, compared_outputs
from qtool.metrics.output_agreement import (
    OutputAgreement,
    OutputShare,
    equal_shares,
    output_agreements,
)
from qtool.metrics.output_errors import OutputErrors, samples_first

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

    def agreements(self) -> tuple[OutputAgreement, ...]:
        """Return what the batches agree in, of each output that has a yardstick; no KV cache."""
        return output_agreements(*self._joined(), self._evidence)

    def equal_shares(self) -> tuple[OutputShare, ...]:
        """Return the shares of equal values of whole numbers; of no KV cache, whose codes differ by
        one everywhere and mean the same."""
        return equal_shares(*self._joined())

    def _joined(self) -> tuple[list[str], list[Array], list[Array]]:
        kept = [i for i, name in enumerate(self.names) if not is_cache(name)]
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
