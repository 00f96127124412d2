"""Inputs and targets of a layer on calibration samples, from which the layer is solved.

They are collected batch by batch, so that batches can run in several processes; each sends its
slices to the rank that solves the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import fx

from qtool.algorithms.layer_rows import (
    channel_mean,
    channel_sums,
    has_bias,
    input_mean,
    input_rows,
    input_sums,
    output_rows,
    reads_features,
    row_weights,
)

HOLDOUT_EVERY = 4  # every n-th batch is held out

BatchSlice = dict[str, torch.Tensor]
"""Samples of one batch: rows of the inputs `x` and targets `y`, and their weights `counts`;
`inputs` and `results`, the sums of all rows, with the weights of these sums in `<name>.weight`."""

Part = tuple[torch.Tensor, float]
"""A sum over a batch, and the weight of what it sums."""


def is_holdout(batch: int) -> bool:
    return batch % HOLDOUT_EVERY == HOLDOUT_EVERY - 1


def slice_batch(
    node: fx.Node,
    inputs: torch.Tensor,
    target: torch.Tensor,
    weights: torch.Tensor | None,
    rows: int,
    ids: torch.Tensor | None = None,
) -> BatchSlice:
    """Return the samples of one batch, on the CPU, where layers are solved.

    Args:
        inputs: inputs of the layer in the quantized network.
        target: target of its results.
        weights: weights of the rows; None: equal weights.
        rows: the most rows to take; 0: sums alone.
        ids: expert of each row, where the layer has experts.
    """
    samples = dict[str, torch.Tensor]()
    weights = None if weights is None else weights.to(inputs.device)
    if rows:
        samples |= {
            name: take(node, values, rows, ids)
            for name, take, values in (("x", input_rows, inputs), ("y", output_rows, target))
        }
        if weights is not None:
            samples["counts"] = row_weights(weights, rows)
    sums = layer_sums(node, inputs, target, weights)
    for name, (total, weight) in zip(("inputs", "results"), sums, strict=True):
        samples[name] = total
        samples[f"{name}.weight"] = torch.tensor(weight, dtype=torch.float64)
    return {name: t.cpu() for name, t in samples.items()}


@dataclass(frozen=True, eq=False)
class LayerSamples:
    """Samples of a layer in all batches, in order."""

    node: fx.Node
    slices: Sequence[BatchSlice]

    def rows(self, holdout: bool) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return rows of inputs and targets, times the root of their weights, and drop them here.

        They are less their means where the layer has a bias, which restores the mean result.

        Args:
            holdout: whether the rows are those of the held-out batches, or those of the others.

        Returns:
            [groups, rows, in] and [groups, rows, out]; None where there are fewer than 2 rows.
        """
        chosen = [each for i, each in enumerate(self.slices) if is_holdout(i) == holdout]
        if not chosen:
            return None
        x, y = (_join(chosen, name) for name in ("x", "y"))
        if x.shape[1] < 2:
            return None
        if "counts" not in chosen[0]:
            if has_bias(self.node):
                x, y = (t.sub_(t.mean(1, keepdim=True)) for t in (x, y))
            return x, y
        counts = torch.cat([each["counts"] for each in chosen])
        share = (counts / counts.sum().clamp(min=1e-30))[:, None]
        if has_bias(self.node):
            x, y = (t.sub_(share.mT @ t) for t in (x, y))
        root = (share * len(share)).sqrt()
        return x.mul_(root), y.mul_(root)

    @property
    def means(self) -> LayerMeans:
        """Means over all rows."""
        means = LayerMeans(self.node)
        for each in self.slices:
            sums = ((each[name], float(each[f"{name}.weight"])) for name in ("inputs", "results"))
            means.add(*sums)
        return means


class LayerMeans:
    """Means of a layer over all positions of its samples, from sums: one for each shape."""

    def __init__(self, node: fx.Node) -> None:
        self._node = node
        self._inputs, self._results = dict[torch.Size, Part](), dict[torch.Size, Part]()

    def add(self, inputs: Part, results: Part) -> None:
        """Add a batch: the sums of `layer_sums`."""
        for parts, (total, weight) in ((self._inputs, inputs), (self._results, results)):
            known: tuple[Any, float] = parts.get(total.shape, (0, 0.0))
            parts[total.shape] = known[0] + total, known[1] + weight

    def mean_input(self) -> torch.Tensor:
        """Return the mean row of inputs, float64 [groups, in]."""
        return input_mean(self._node, list(self._inputs.values()))

    def mean_target(self) -> torch.Tensor:
        """Return the mean target of each channel, float64 [channels]."""
        return channel_mean(list(self._results.values()))


def layer_sums(
    node: fx.Node, inputs: torch.Tensor, target: torch.Tensor, weights: torch.Tensor | None = None
) -> tuple[Part, Part]:
    """Return the sums of inputs and targets over a batch. Arguments: see `slice_batch`."""
    channel = -1 if reads_features(node) else 1
    return input_sums(node, inputs, weights), channel_sums(target, channel, weights)


def _join(slices: Sequence[BatchSlice], name: str) -> torch.Tensor:
    """Return the rows of slices as one tensor [groups, rows, columns], and drop them in the slices:
    of a wide layer they take most of the memory of a conversion."""
    first = slices[0][name]
    rows = first.new_empty(len(first), sum(each[name].shape[1] for each in slices), first.shape[2])
    start = 0
    for each in slices:
        part = each.pop(name)
        rows[:, start : start + part.shape[1]] = part
        start += part.shape[1]
    return rows


def slices_to_bytes(slices: Sequence[BatchSlice]) -> bytes:
    """Serialize slices for another process."""
    named = {f"{i}/{name}": t for i, each in enumerate(slices) for name, t in each.items()}
    return save(
        {
            name: t.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, t in named.items()
        }
    )


def slices_from_bytes(data: bytes) -> list[BatchSlice]:
    """Return the slices that `slices_to_bytes` serialized."""
    slices: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in load(data).items():
        number, _, name = key.partition("/")
        slices.setdefault(int(number), {})[name] = tensor
    return [slices[i] for i in sorted(slices)]
