"""Inputs of other sizes than those of a sample, at which graphs and files are compared.

All dynamic dimensions but the batch change at once, to sizes that the float model takes. Which ones
it takes is not known (strides and windows divide them, tables end), so that multiples and parts of
the sample's sizes are tried until it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qtool.core.data import Batch
from qtool.core.graph.float_graph import FloatGraph
from qtool.core.number_texts import sizes_text
from qtool.core.random_inputs import is_cache

ROWS = 2
"""Samples of a batch of other sizes."""
LARGEST = 1 << 20
"""Elements of the inputs of a batch that is larger than the sample."""
MIN_SIZE = 2  # torch.export specializes a size of 1
_COARSE = 32  # a common product of strides
Factors = tuple[float, ...]
_SMALLER: tuple[Factors, ...] = ((0.5, 0.75), (0.75, 0.5), (0.5,), (0.75,))
_LARGER: tuple[Factors, ...] = ((1.5, 1.25), (2, 1.5), (1.5,), (2,), (3,))
"""Factors of the dynamic dimensions, in turns."""
Run = Callable[[Batch], Sequence[Any]]
"""Returns the outputs on a bound batch; raises what it likes for sizes that it does not take."""


@dataclass(frozen=True)
class OtherSize:
    """A batch of other sizes, and what the float model gives for it.

    Attributes:
        sizes: name of a dimension -> its size.
        batch: bound to the graph.
        expected: outputs of the float model.
    """

    sizes: Mapping[str, int]
    batch: Batch
    expected: Sequence[Any]

    def __str__(self) -> str:
        return sizes_text(self.sizes)


def varying_dimensions(graph: FloatGraph) -> tuple[str, ...]:
    """Return the names of the dynamic dimensions but the first ones, whose numbers vary anyway.

    Empty for decoders with a cache, whose kernels take some combinations of sizes only.
    """
    if any(map(is_cache, graph.inputs)):
        return ()
    first = {i.shape[0] for i in graph.inputs if i.shape}
    names = (s for i in graph.inputs for s in i.shape[1:] if isinstance(s, str))
    return tuple(n for n in dict.fromkeys(names) if n not in first and " + " not in n)


def at_other_sizes(
    graph: FloatGraph, batch: Batch, run: Run, names: Iterable[str]
) -> list[OtherSize]:
    """Return at most two batches that the float model takes: a smaller and a larger one.

    Args:
        graph: whose inputs they are.
        batch: bound to it; its values are repeated.
        run: the float model.
        names: names of the dimensions to change.
    """
    few = graph.smaller(batch, ROWS)
    sizes, accepted = _sizes(graph, few), []
    own = {name: sizes[name] for name in names if name in sizes}
    for factors in (_SMALLER, _LARGER):
        for other in _candidates(own, factors):
            resized = resize(graph, few, other)
            if factors is _LARGER and sum(t.numel() for _, t in resized.tensors()) > LARGEST:
                continue
            if (expected := _outputs(run, resized)) is not None:
                accepted.append(OtherSize(other, resized, expected))
                break
    return accepted


def _outputs(run: Run, batch: Batch) -> Sequence[Any] | None:
    try:
        return run(batch)
    except (Exception, SystemExit):  # noqa: BLE001  # the model does not take these sizes
        return None


def resize(graph: FloatGraph, batch: Batch, sizes: Mapping[str, int]) -> Batch:
    """Return a bound batch with these sizes of its dynamic dimensions: cut, or repeated.

    Args:
        graph: whose inputs they are.
        batch: bound to it.
        sizes: name -> size of dynamic dimensions, others stay; "a + b" is the sum of two.
    """
    tensors, sizes = [], {**_sizes(graph, batch), **sizes}
    for spec, t in zip(graph.inputs, graph.tensors_of(batch), strict=True):
        for axis, name in enumerate(spec.shape):
            size = _size_of(name, sizes) if isinstance(name, str) else None
            if size is not None and size != t.shape[axis]:
                t = t.index_select(axis, torch.arange(size, device=t.device) % t.shape[axis])
        tensors.append(t)
    return graph.call_of(tensors)


def _size_of(name: str, sizes: Mapping[str, int]) -> int | None:
    parts = [sizes.get(part) for part in ([name] if name in sizes else name.split(" + "))]
    known = [size for size in parts if size is not None]
    return sum(known) if len(known) == len(parts) else None


def _sizes(graph: FloatGraph, batch: Batch) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for spec, t in zip(graph.inputs, graph.tensors_of(batch), strict=True):
        sizes |= {n: s for n, s in zip(spec.shape, t.shape, strict=True) if isinstance(n, str)}
    return sizes


def _candidates(sizes: Mapping[str, int], factors: Sequence[Factors]) -> Iterator[dict[str, int]]:
    """Yield other sizes, each different from the sample's; multiples of a stride last."""
    seen = [dict(sizes)]
    for step in (1, _COARSE):
        for each in factors:
            other = {
                name: max(MIN_SIZE, step * round(size * each[i % len(each)] / step))
                for i, (name, size) in enumerate(sizes.items())
            }
            if other not in seen and all(other[n] != size for n, size in sizes.items()):
                seen.append(other)
                yield other
    for more in (1, 2):
        if factors is _LARGER:
            yield {name: size + more for name, size in sizes.items()}
