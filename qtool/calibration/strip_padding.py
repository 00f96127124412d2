"""Batches of texts without their padding.

What stands on padded tokens is read by nobody, but observers cannot tell: it would widen ranges,
count in moments, and be what weights are rounded for. So texts of equal lengths are taken together,
and each is cut to its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from qtool.core.data import MASK, Batch
from qtool.core.graph import FloatGraph, Input

SHORTEST = 2  # tokens; torch.export takes a size of 1 for another kind


def strip_padding(graph: FloatGraph, batch: Batch) -> Iterator[Batch]:
    """The samples of a batch that is bound to the inputs, in batches of equal lengths.

    The batch as it is where nothing in it is padding, or where the graph takes one length alone,
    inputs with other sizes, or tokens with gaps between them.
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
            _slice_lengths(t[rows], given.shape, length, begin, end)
            for given, t in zip(graph.inputs, tensors, strict=True)
        ])  # fmt: skip


def _is_mask(given: Input) -> bool:
    return given.name == MASK


def _length_dimension(inputs: Sequence[Input]) -> str | None:
    """The name of the dynamic size that the mask's tokens have, where it can be cut: some other
    input has it, too, and no input a dynamic size but this and the number of samples."""
    mask = next((i for i in inputs if _is_mask(i)), None)
    if mask is None or len(mask.shape) != 2 or not all(isinstance(s, str) for s in mask.shape):
        return None
    samples, length = mask.shape
    sizes = [[s for s in given.shape if isinstance(s, str)] for given in inputs]
    alike = all(given.shape[:1] == (samples,) for given in inputs)
    known = all(size in (samples, length) for each in sizes for size in each)
    shared = sum(length in each for each in sizes) > 1
    return str(length) if alike and known and shared and samples != length else None


def _token_span(real: torch.Tensor) -> tuple[int, int] | None:
    """Where the tokens of a row begin and end; None where there are none, or gaps between them."""
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
