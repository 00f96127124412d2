"""What a row of the benchmark is, and the inputs that networks are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

__all__ = ["Network", "Rows", "binary", "ids", "images", "joined", "mask", "noise", "waves"]

Batch = dict[str, torch.Tensor]
Inputs = Callable[[int, torch.Generator], Batch]
SHORTER = 4  # steps that a dynamic dimension has less at another size
_LIBRARIES: list[Any] = []  # operator definitions live as long as their library object


@dataclass(frozen=True)
class Network:
    """One row.

    group: the table of the page it stands in. inputs: (batch size, generator) -> inputs by the
    names of `forward`. dynamic: input -> {dimension: name}, for `qtool.capture_model`; the batch
    alone where it is empty. other: makes inputs of other dynamic sizes of a batch, by default three
    samples and, along other dynamic dimensions, `SHORTER` steps less. exporter, opset:
    "torchscript" or "dynamo", for a network that qtool is given as the ONNX file that torch.onnx
    writes of it. fixed: it takes batches of one size only. file: an ONNX file that is there
    already (the network is asked for inputs only).
    """

    group: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    other: Callable[[Batch], Batch] | None = None
    exporter: str = ""
    opset: int = 0
    fixed: bool = False
    file: str = ""

    def other_sizes(self, batch: Batch) -> Batch:
        """The batch at another size, see `other`."""
        if self.other is not None:
            return self.other(batch)

        def smaller(value: torch.Tensor, name: str) -> torch.Tensor:
            for axis in self.dynamic.get(name, {0: "batch"} if value.dim() else {}):
                size = 3 if axis == 0 else value.shape[axis] - SHORTER
                value = value.narrow(axis, 0, size)
            return value.contiguous()

        return {n: pytree.tree_map(partial(smaller, name=n), v) for n, v in batch.items()}


class Rows(dict[str, Network]):
    """Rows by their names, written as decorators of modules."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def __call__(self, name: str, inputs: Inputs, **options: Any) -> Callable[[Any], Any]:
        """@rows("name", inputs): the class (or function) below builds the network."""

        def added(build: Any) -> Any:
            self[name] = Network(self.group, build, inputs, **options)
            return build

        return added


def images(*sizes: int, name: str = "x") -> Inputs:
    """Images, clips or volumes that have large shapes and small details, as photographs do."""

    def made(count: int, generator: torch.Generator) -> Batch:
        mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(sizes) - 1]
        image = 0.1 * torch.randn(count, *sizes, generator=generator)
        for cells in (3, 8, 24):
            small = [min(cells, s) for s in sizes[1:]]
            coarse = torch.randn(count, sizes[0], *small, generator=generator)
            image += F.interpolate(coarse, sizes[1:], mode=mode)
        return {name: image / image.std()}

    return made


def noise(*sizes: int, name: str = "x", scale: float = 1.0) -> Inputs:
    """Normally distributed values."""
    return lambda n, g: {name: scale * torch.randn(n, *sizes, generator=g)}


def waves(length: int, name: str = "x") -> Inputs:
    """Sums of a few tones with noise, as sound is."""

    def made(count: int, generator: torch.Generator) -> Batch:
        time = torch.arange(length) / 100.0
        tones = torch.rand(count, 6, 1, generator=generator) * 6
        phases = torch.rand(count, 6, 1, generator=generator) * 6
        wave = torch.sin(time * tones + phases).mean(1)
        return {name: wave + 0.02 * torch.randn(count, length, generator=generator)}

    return made


def ids(length: int, vocabulary: int = 200, name: str = "ids", low: int = 3) -> Inputs:
    """Token ids."""
    return lambda n, g: {name: torch.randint(low, vocabulary, (n, length), generator=g)}


def mask(length: int, name: str = "mask", dtype: torch.dtype = torch.int64) -> Inputs:
    """True (or one) where there is a token, false at the end of the shorter half."""

    def made(count: int, generator: torch.Generator) -> Batch:
        lengths = torch.randint(length // 2, length + 1, (count, 1), generator=generator)
        return {name: (torch.arange(length) < lengths).to(dtype)}

    return made


def binary(*sizes: int, name: str = "x") -> Inputs:
    """Zeros and ones, as float."""
    return lambda n, g: {name: (torch.rand(n, *sizes, generator=g) < 0.3).float()}


def joined(*parts: Inputs) -> Inputs:
    """Several inputs."""

    def made(count: int, generator: torch.Generator) -> Batch:
        found: Batch = {}
        for part in parts:
            found.update(part(count, generator))
        return found

    return made


def torchvision() -> Any:
    """torchvision; where its compiled part fits another torch, what selects boxes is done here."""
    try:
        import torchvision as library
    except RuntimeError:
        defined = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            defined.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        defined.impl("nms", _select, "CPU")
        _LIBRARIES.append(defined)
        import torchvision as library

        library.ops.boxes._assert_has_ops = lambda: None
    return library


def _select(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """Indices of boxes [N, 4], by score, that overlap no better one by more than the threshold."""
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    left, kept = scores.argsort(descending=True), []
    while left.numel():
        best, left = left[0], left[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[left, :2])
        high = torch.minimum(boxes[best, 2:], boxes[left, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        left = left[shared <= threshold * (area[best] + area[left] - shared)]
    return torch.stack(kept) if kept else torch.zeros(0, dtype=torch.int64)
