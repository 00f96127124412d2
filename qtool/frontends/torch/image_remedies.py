"""Finds the number of channels and the size of the images that a model takes, by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from qtool.core.data import Batch
from qtool.core.remedies import DataEdit
from qtool.core.shape_remedies import image_edit

_COMMON = (224, 32, 28, 64, 96, 128, 256, 299, 384, 112, 160, 192, 227, 240, 288, 320, 448, 512)
_SMALL = range(1, 65)
_CHANNELS = (1, 3)


def image_remedy(model: nn.Module, example: Batch) -> DataEdit | None:
    """Return what to write so that a model takes images with other channels or of another size, or
    None.

    The model has run on images of that shape, and has none of those in the batch.

    Args:
        model: the module.
        example: a batch that it does not take.
    """
    tensors = [t for _, t in example.tensors()]
    if len(tensors) != 1 or tensors[0].dim() != 4 or not tensors[0].is_floating_point():
        return None
    shape = tuple(tensors[0].shape)
    edits = (image_edit(expected, shape) for expected in _shapes(shape))
    runs = _runs_on(model, example)
    return next((e[0] for e in edits if e is not None and runs(e[1])), None)


def _shapes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield shapes to try: with other channels first, then of other sizes, then both."""
    samples, channels, *size = shape
    other = [c for c in _CHANNELS if c != channels]
    yield from ((samples, c, *size) for c in other)
    for count in (channels, *other):
        for width in dict.fromkeys((*_COMMON, *_SMALL)):
            yield samples, count, width, width


def _runs_on(model: nn.Module, example: Batch) -> Callable[[tuple[int, ...]], bool]:
    def runs(shape: tuple[int, ...]) -> bool:
        one = example.map_tensors(lambda t: t.new_zeros(1, *shape[1:]))
        try:
            with torch.no_grad():
                model(*one.args, **one.kwargs)
        except (Exception, SystemExit):  # noqa: BLE001  # the user's code may raise anything
            return False
        return True

    return runs
