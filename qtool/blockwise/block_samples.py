"""The samples of a block for steps that train on it: inputs in both networks, on disk.

The quantized block gets its inputs in the quantized network; its goal are the results of the float
block for the inputs in the float network (BRECQ, Li et al. 2021; EfficientQAT, Chen et al. 2024).
So a block also makes up for errors of those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

from qtool.algorithms.part_samples import PartBatch, choose_samples
from qtool.blockwise.activation_store import ActivationStore
from qtool.blockwise.stored_data import StoredBatch
from qtool.core.data import Batch
from qtool.core.data.sample_roles import Role
from qtool.core.graph import FloatGraph
from qtool.core.graph.float_graph import MIN_SAMPLES

_T = TypeVar("_T")


@dataclass(frozen=True)
class StoredSamples:
    """The samples of a block, of all ranks; each batch is mapped when it is used.

    Attributes:
        values: inputs of the block, of all batches.
        names: names of its inputs, in order.
        stored: its batches.
        training_bytes: budget in bytes for activations kept for backward.
        shared: names of points whose parameters other blocks use.
    """

    values: ActivationStore
    names: Sequence[str]
    stored: Sequence[StoredBatch]
    training_bytes: int
    shared: frozenset[str]

    def batches(
        self, graph: FloatGraph, size: int, limit: int | None, holdout: bool | None
    ) -> Sequence[Batch]:
        """Return batches of the block.

        Args:
            graph: graph of the block.
            size: largest number of samples of a batch, where it may be split.
            limit: largest number of all samples, likewise.
            holdout: held-out samples, samples to train on, or both (None).
        """
        splits = graph.can_split_batches
        pieces = list(self._pieces(graph, size if splits else None, limit, holdout))

        def load(index: int) -> Batch:
            batch, chosen = pieces[index]
            sides = self.values.load(batch.number)
            exact, coded = (graph.call_of([side[n] for n in self.names]) for side in sides)
            both = PartBatch(coded.args, coded.kwargs, exact)
            return choose_samples(graph, both, chosen) if splits else both

        return LazySequence(load, range(len(pieces)))

    def _pieces(
        self, graph: FloatGraph, size: int | None, limit: int | None, holdout: bool | None
    ) -> Iterator[tuple[StoredBatch, slice]]:
        """Yield batches and the samples of each piece."""
        fewest = graph.batch_size_range()[0]
        fewest = fewest if fewest > MIN_SAMPLES else 1
        left = sum(batch.size for batch in self.stored) if limit is None else limit
        for batch in self.stored:
            if batch.role is Role.ESTIMATE or (holdout is not None and batch.fitted is holdout):
                continue
            step = max(size or batch.size, fewest)
            for start in range(0, batch.size, step):
                count = min(step, batch.size - start)
                count = min(count, left) if size is not None else count
                if left <= 0 or count < fewest:
                    break
                yield batch, slice(start, start + count)
                left -= count


class LazySequence(Sequence[_T]):
    """Items by number.

    Args:
        item: number -> item; called at each access.
        numbers: numbers of the items, in order.
    """

    def __init__(self, item: Callable[[int], _T], numbers: Sequence[int]) -> None:
        self._item, self._numbers = item, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> _T: ...

    @overload
    def __getitem__(self, index: slice) -> LazySequence[_T]: ...

    def __getitem__(self, index: int | slice) -> _T | LazySequence[_T]:
        if isinstance(index, slice):
            return LazySequence(self._item, self._numbers[index])
        return self._item(self._numbers[index])
