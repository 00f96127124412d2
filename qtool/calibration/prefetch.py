"""Copies the next batch to the GPU while the current one is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from qtool.core.data import Batch


def prefetch(batches: Iterable[Batch], device: torch.device) -> Iterator[tuple[Batch, Batch]]:
    """Yield each batch on the host and on the device.

    On CUDA one batch is read ahead: its copy runs from pinned memory on a separate stream, in
    parallel to the kernels of the previous batch.
    """
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
    """Make later kernels wait for the copy, and keep its memory until they have run."""
    stream = torch.cuda.current_stream(device)
    stream.wait_event(done)
    for _, tensor in copied.tensors():
        tensor.record_stream(stream)
    return batch, copied
