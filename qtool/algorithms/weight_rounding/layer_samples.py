"""What is seen of a layer on samples, to round it: of each batch by itself, and of all of them.

Of a batch it is as much as is asked for and no more: so batches may run in several processes, and
what they tell of a layer goes to the one that solves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import load, save
from torch import fx

from qtool.algorithms.layer_rows import (
    channel_mean,
    channel_sums,
    input_mean,
    input_rows,
    input_sums,
    output_rows,
    row_weights,
)

HOLDOUT_EVERY = 4  # every so many batches are for judging alone

BatchSlice = Mapping[str, torch.Tensor]
"""Of one batch: `x`, `y` rows of what a layer reads and of what is wanted of it, `counts` how much
each counts; `inputs`, `results` what all rows add to their means, and `.weight` of these."""

aten = torch.ops.aten


def is_holdout(batch: int) -> bool:
    return batch % HOLDOUT_EVERY == HOLDOUT_EVERY - 1


def slice_batch(
    node: fx.Node,
    inputs: torch.Tensor,
    target: torch.Tensor,
    weights: torch.Tensor | None,
    rows: int,
) -> BatchSlice:
    """
    Args:
        reads: what the layer reads in the quantized network. wanted: of its results.
        gains: how much each row counts; None: all the same. rows: at most; 0: means alone.
    """
    found = dict[str, torch.Tensor]()
    if rows:
        found |= {"x": input_rows(node, inputs, rows), "y": output_rows(node, target, rows)}
        if weights is not None:
            found["counts"] = row_weights(weights, rows)
    channel = -1 if node.target is aten.linear.default else 1
    means = input_sums(node, inputs, weights), channel_sums(target, channel, weights)
    for name, (summed, weight) in zip(("inputs", "results"), means, strict=True):
        found[name] = summed
        found[f"{name}.weight"] = torch.tensor(weight, dtype=torch.float64)
    return found


@dataclass(frozen=True, eq=False)
class LayerSamples:
    """A layer on all batches, in their order."""

    node: fx.Node
    slices: Sequence[BatchSlice]

    def rows(self, holdout: bool) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Rows of what it reads and of what is wanted less their means, times the root of what they
        count, of batches that are kept aside or of the others; None of too few."""
        chosen = [part for i, part in enumerate(self.slices) if is_holdout(i) == holdout]
        if not chosen:
            return None
        x, y = (torch.cat([part[name] for part in chosen], 1) for name in ("x", "y"))
        if x.shape[1] < 2:
            return None
        if "counts" not in chosen[0]:
            return x.sub_(x.mean(1, keepdim=True)), y.sub_(y.mean(1, keepdim=True))
        counts = torch.cat([part["counts"] for part in chosen])
        share = (counts / counts.sum().clamp(min=1e-30))[:, None]
        root = (share * len(share)).sqrt()
        return root * (x - (share * x).sum(1, keepdim=True)), root * (
            y - (share * y).sum(1, keepdim=True)
        )

    def mean_input(self) -> torch.Tensor:
        """float64 [groups, inputs]"""
        return input_mean(self.node, self._means("inputs"))

    def mean_target(self) -> torch.Tensor:
        """float64 [channels]"""
        return channel_mean(self._means("results"))

    def _means(self, name: str) -> list[tuple[torch.Tensor, float]]:
        return [(part[name], float(part[f"{name}.weight"])) for part in self.slices]


def slices_to_bytes(parts: Sequence[BatchSlice]) -> bytes:
    """Parts as bytes for another process."""
    named = {f"{i}/{name}": t for i, part in enumerate(parts) for name, t in part.items()}
    return save(
        {
            name: t.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, t in named.items()
        }
    )


def slices_from_bytes(data: bytes) -> list[BatchSlice]:
    """The inverse."""
    found: dict[int, dict[str, torch.Tensor]] = {}
    for place, tensor in load(data).items():
        number, _, name = place.partition("/")
        found.setdefault(int(number), {})[name] = tensor
    return [found[i] for i in sorted(found)]
