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
    gains_of,
    mean_along,
    mean_of,
    part_along,
    part_of_mean,
    results_of,
    rows_of,
)

KEPT_ASIDE = 4  # every so many batches are for judging alone

BatchSlice = Mapping[str, torch.Tensor]
"""Of one batch: `x`, `y` rows of what a layer reads and of what is wanted of it, `counts` how much
each counts; `inputs`, `results` what all rows add to their means, and `.weight` of these."""

aten = torch.ops.aten


def is_aside(batch: int) -> bool:
    return batch % KEPT_ASIDE == KEPT_ASIDE - 1


def part_of(
    node: fx.Node,
    reads: torch.Tensor,
    wanted: torch.Tensor,
    gains: torch.Tensor | None,
    rows: int,
) -> BatchSlice:
    """
    Args:
        reads: what the layer reads in the quantized network. wanted: of its results.
        gains: how much each row counts; None: all the same. rows: at most; 0: means alone.
    """
    found = dict[str, torch.Tensor]()
    if rows:
        found |= {"x": rows_of(node, reads, rows), "y": results_of(node, wanted, rows)}
        if gains is not None:
            found["counts"] = gains_of(gains, rows)
    channel = -1 if node.target is aten.linear.default else 1
    means = part_of_mean(node, reads, gains), part_along(wanted, channel, gains)
    for name, (summed, weight) in zip(("inputs", "results"), means, strict=True):
        found[name] = summed
        found[f"{name}.weight"] = torch.tensor(weight, dtype=torch.float64)
    return found


@dataclass(frozen=True, eq=False)
class LayerSamples:
    """A layer on all batches, in their order."""

    node: fx.Node
    parts: Sequence[BatchSlice]

    def rows(self, aside: bool) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Rows of what it reads and of what is wanted less their means, times the root of what they
        count, of batches that are kept aside or of the others; None of too few."""
        chosen = [part for i, part in enumerate(self.parts) if is_aside(i) == aside]
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

    def mean_of_inputs(self) -> torch.Tensor:
        """float64 [groups, inputs]"""
        return mean_of(self.node, self._means("inputs"))

    def mean_of_wanted(self) -> torch.Tensor:
        """float64 [channels]"""
        return mean_along(self._means("results"))

    def _means(self, name: str) -> list[tuple[torch.Tensor, float]]:
        return [(part[name], float(part[f"{name}.weight"])) for part in self.parts]


def written(parts: Sequence[BatchSlice]) -> bytes:
    """Parts as bytes for another process."""
    named = {f"{i}/{name}": t for i, part in enumerate(parts) for name, t in part.items()}
    return save(
        {
            name: t.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, t in named.items()
        }
    )


def read(data: bytes) -> list[BatchSlice]:
    """The inverse."""
    found: dict[int, dict[str, torch.Tensor]] = {}
    for place, tensor in load(data).items():
        number, _, name = place.partition("/")
        found.setdefault(int(number), {})[name] = tensor
    return [found[i] for i in sorted(found)]
