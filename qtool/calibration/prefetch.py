"""Batches on the device where the model is; there the next one is copied while this one is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from qtool.core.data import Batch


def prefetch(batches: Iterable[Batch], device: torch.device) -> Iterator[tuple[Batch, Batch]]:
    """Each batch as it is and on the device. For CUDA one more is read than is asked for: its copy
    runs from pinned memory on a stream of its own, beside the kernels of the one before."""
    if device.type != "cuda":
        for batch in batches:
            yield batch, batch.to(device)
        return
    waiting: tuple[Batch, Batch, torch.cuda.Event] | None = None
    stream = torch.cuda.Stream(device)
    for batch in batches:
        with torch.cuda.stream(stream):
            copied = batch.pin_memory().to(device)
            done = stream.record_event()
        if waiting is not None:
            yield _ready(*waiting, device)
        waiting = batch, copied, done
    if waiting is not None:
        yield _ready(*waiting, device)


def _ready(
    batch: Batch, copied: Batch, done: torch.cuda.Event, device: torch.device
) -> tuple[Batch, Batch]:
    """Once the kernels that come next wait for the copy, and its memory for those."""
    stream = torch.cuda.current_stream(device)
    stream.wait_event(done)
    for _, tensor in copied.tensors():
        tensor.record_stream(stream)
    return batch, copied
