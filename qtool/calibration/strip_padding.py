"""Removes the padding from batches of texts.

Outputs at padded positions are ignored later, but would widen ranges, count in moments and affect
weight rounding. So texts of equal length are batched together and cut to that length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.random_inputs import Input
from qtool.core.value_names import MASK

SHORTEST = 2  # tokens; torch.export specializes a size of 1


def strip_padding(graph: FloatGraph, batch: Batch) -> Iterator[Batch]:
    """Yield the samples of a bound batch in batches of equal length, without padding.

    Yields the batch unchanged if it has no padding, if the graph has a fixed length or further
    dynamic sizes, or if padding lies between tokens.
    """
    length = _length_dimension(graph.inputs)
    if length is None:
        yield batch
        return
    tensors = graph.tensors_of(batch)
    mask = next(t for i, t in zip(graph.inputs, tensors, strict=True) if _is_mask(i)) != 0
    spans = [_token_span(row) for row in mask]
    if None in spans or set(spans) == {(0, mask.shape[1])}:
        yield batch
        return
    for begin, end in sorted(set(filter(None, spans))):
        rows = [row for row, span in enumerate(spans) if span == (begin, end)]
        yield graph.call_of([
            _slice_lengths(t[rows], info.shape, length, begin, end)
            for info, t in zip(graph.inputs, tensors, strict=True)
        ])  # fmt: skip


def _is_mask(info: Input) -> bool:
    return info.name == MASK


def _length_dimension(inputs: Sequence[Input]) -> str | None:
    """Return the name of the mask's length dimension if it can be cut, else None.

    Another input must have it, too, and no input any dynamic size but it and the batch.
    """
    mask = next((i for i in inputs if _is_mask(i)), None)
    if mask is None or len(mask.shape) != 2 or not all(isinstance(s, str) for s in mask.shape):
        return None
    samples, length = mask.shape
    sizes = [[s for s in info.shape if isinstance(s, str)] for info in inputs]
    batched = all(info.shape[:1] == (samples,) for info in inputs)
    known = all(size in (samples, length) for each in sizes for size in each)
    shared = sum(length in each for each in sizes) > 1
    return str(length) if batched and known and shared and samples != length else None


def _token_span(real: torch.Tensor) -> tuple[int, int] | None:
    """Return begin and end of a row's tokens; None without tokens, or with gaps between them."""
    places = real.nonzero().flatten().tolist()
    if not places or places[-1] - places[0] + 1 != len(places):
        return None
    begin = max(0, min(places[0], len(real) - SHORTEST))
    return begin, max(places[-1] + 1, min(begin + SHORTEST, len(real)))


def _slice_lengths(
    tensor: torch.Tensor, shape: Sequence[int | str], length: str, begin: int, end: int
) -> torch.Tensor:
    for axis, size in enumerate(shape):
        if size == length:
            tensor = tensor.narrow(axis, begin, end - begin)
    return tensor.contiguous()
