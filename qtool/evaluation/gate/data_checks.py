"""Whether the samples of a gate are whole and what the quantized file was made for, and whether its
outputs depend on them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qtool.core.number_texts import percent
from qtool.core.types import Array
from qtool.evaluation.gate.result import GateCheck, Outcome

FEW = 8  # samples below which nothing is said about them
_RUN = 0.02  # share of equal samples in a row beyond which the data is cut off, not natural
_OUTSIDE = 0.1  # share of values outside of the range of an input: calibration clips far fewer
_USED = 1 / 16  # share of that range that values use at least

_CAUSES = "check the preprocessing, and what the file was calibrated on"


class DataChecks:
    """What the inputs of all batches say."""

    def __init__(self, names: Sequence[str], ranges: Mapping[str, tuple[float, float]]) -> None:
        """
        Args:
            names: names of the inputs.
            ranges: name -> the least and the largest value that the quantized file knows.
        """
        self._values = [_InputValues(name, ranges.get(name)) for name in names]
        self._rows: list[int] = []  # a hash of each sample

    def add(self, arrays: Sequence[Array]) -> None:
        """Look at a batch."""
        rows = zip(*(a for a in arrays if a.ndim), strict=False)
        self._rows += [hash(b"".join(part.tobytes() for part in row)) for row in rows]
        for values, array in zip(self._values, arrays, strict=True):
            values.add(array)

    def checks(self) -> list[GateCheck]:
        """Return what is odd."""
        texts = [("samples", self._repeated()), *(("inputs", v.text()) for v in self._values)]
        return [GateCheck(name, Outcome.NOT_COMPARABLE, text) for name, text in texts if text]

    def _repeated(self) -> str:
        count, distinct = len(self._rows), len(set(self._rows))
        if count >= FEW and 2 * distinct < count:
            return f"only {distinct} of {count} samples are distinct; check how the data was made"
        start, run = max(_runs(self._rows), key=lambda each: each[1], default=(0, 0))
        if run >= max(FEW, _RUN * count):
            last = start + run - 1
            return f"samples {start} to {last} of {count} are equal; is the data cut off?"
        return ""


class ConstantOutput:
    """Whether the first output, of which metrics are, is equal for all samples.

    Others may hardly vary by nature, and be one code after rounding.
    """

    def __init__(self) -> None:
        self._first: list[bytes] = []
        self._varies = [False, False]  # of the float file and of the other one

    def add(self, outputs: Sequence[Sequence[Array]]) -> None:
        """Look at the outputs of both files for a batch."""
        arrays = [own[0] for own in outputs]
        if not self._first:
            self._first = [_row(array, 0) for array in arrays]
        for file, (array, first) in enumerate(zip(arrays, self._first, strict=True)):
            rows = range(len(array) if array.ndim else 1)
            self._varies[file] |= any(_row(array, row) != first for row in rows)

    def checks(self, name: str, samples: int) -> list[GateCheck]:
        """Return a regression if the quantized file alone has it constant."""
        if self._varies != [True, False] or samples < FEW:
            return []
        text = f"'{name}' is the same for all {samples:,} samples; the float file's varies"
        return [GateCheck("outputs", Outcome.REGRESSION, text)]


def _row(array: Array, index: int) -> bytes:
    return (array[index] if array.ndim else array).tobytes()


class _InputValues:
    """The values of a float input, next to the range that the quantized file has for it."""

    def __init__(self, name: str, ends: tuple[float, float] | None) -> None:
        self._name, self._ends = name, ends
        self._outside = self._count = 0
        self._low, self._high = math.inf, -math.inf

    def add(self, array: Array) -> None:
        if self._ends is None or array.dtype.kind != "f" or not np.isfinite(array).any():
            return
        self._outside += int(((array < self._ends[0]) | (array > self._ends[1])).sum())
        self._count += array.size
        self._low = min(self._low, float(np.nanmin(array)))
        self._high = max(self._high, float(np.nanmax(array)))

    def text(self) -> str:
        """Return what is odd; "" if nothing is."""
        if self._ends is None or not self._count:
            return ""
        low, high = self._ends
        made = f"{low:.3g} to {high:.3g} of '{self._name}', for which the file was made"
        if self._outside > _OUTSIDE * self._count:
            share = percent(self._outside / self._count)
            return f"{share} of the values are outside of {made}; {_CAUSES}"
        if 0 < self._high - self._low < _USED * (high - low):
            ends = f"{self._low:.3g} to {self._high:.3g}"
            return f"the values, {ends}, are a small part of {made}; {_CAUSES}"
        return ""


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the start and the length of each run of equal values."""
    start = 0
    for _, group in itertools.groupby(rows):
        length = len(list(group))
        yield start, length
        start += length
