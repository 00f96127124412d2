"""The device that a graph runs on.

A captured graph is on the CPU: passes, plans and files read its tensors there. What runs samples
through the whole network runs a copy on the device of the user's model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool.core.data import Batch
from qtool.core.graph.edit import clone
from qtool.core.graph.nodes import tensor

CPU = torch.device("cpu")


def device_of(module: nn.Module) -> torch.device:
    """Return the device of the first parameter or buffer; the CPU without one."""
    tensors = chain(module.parameters(), module.buffers())
    return next((t.device for t in tensors), CPU)


@contextmanager
def float32_convolutions(device: torch.device) -> Iterator[None]:
    """Compute convolutions on a device with the bits of float32: TF32, torch's default on CUDA,
    rounds their factors to 10 bits. On the CPU no setting of the process is touched."""
    if device == CPU:
        yield
        return
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def on_device(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """Return a copy of a graph on a device, with all modules in it; on the CPU the graph itself."""
    if device == CPU:
        return module

    def moved(argument: Any) -> Any:
        return device if isinstance(argument, torch.device) else argument

    module = clone(module)
    for node in module.graph.nodes:
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            holder, value = module.get_submodule(owner), tensor(module, node)
            holder._parameters.pop(name, None)
            holder._buffers.pop(name, None)
            setattr(holder, name, value.detach().to(device))
        elif node.op == "call_function":  # an operator that creates a tensor
            node.args, node.kwargs = pytree.tree_map(moved, (node.args, node.kwargs))
    module.recompile()
    return module


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
    for _, moved in copied.tensors():
        moved.record_stream(stream)
    return batch, copied
