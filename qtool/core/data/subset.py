"""The first samples of an iterable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from qtool.core.data.batch import Batch
from qtool.core.data.batches import batches
from qtool.core.limits import Range

_SAMPLES = Range(1, whole=True)


def first_samples(
    data: Iterable[Any], samples: int, model: nn.Module | None = None
) -> Iterable[Any]:
    """Return batches with the first samples of an iterable.

    Args:
        data: items as `to_batch` takes them; read again for each pass if it can be.
        samples: their number.
        model: see `batches`.

    Raises:
        OptionError: `samples` is not a positive whole number.
    """
    _SAMPLES.check("samples", samples)
    once = isinstance(data, Iterator)
    return _first(data, samples, model) if once else FirstSamples(data, samples, model)


@dataclass(frozen=True)
class FirstSamples:
    """The first samples of an iterable that can be read again.

    Attributes:
        data: the iterable.
        samples: number of samples.
        model: see `batches`.
    """

    data: Iterable[Any]
    samples: int
    model: nn.Module | None = None

    def __iter__(self) -> Iterator[Batch]:
        return _first(self.data, self.samples, self.model)


def _first(data: Iterable[Any], samples: int, model: nn.Module | None) -> Iterator[Batch]:
    left = samples
    for batch in batches(data, model):
        yield _head(batch, left)
        left -= batch.size
        if left <= 0:
            return


def _head(batch: Batch, count: int) -> Batch:
    """Return the first samples of a batch; all of it if they are not its first dimension."""
    size = batch.size
    if count >= size or any(not t.dim() or len(t) != size for _, t in batch.tensors()):
        return batch
    return batch.map_tensors(lambda t: t[:count])
