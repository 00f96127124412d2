"""Times of the blocks of a network: sums over the nodes of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qtool.evaluation.latency.node_times import Profile
from qtool.evaluation.report.page.short_names import block_of

FEW = 20  # nodes that need no blocks


@dataclass(frozen=True)
class BlockTime:
    """Time of a block.

    Attributes:
        name: its module.
        nodes: number of its nodes.
        microseconds: time in each model.
    """

    name: str
    nodes: int
    microseconds: tuple[float, ...]

    @property
    def loss(self) -> float:
        """Microseconds that the last model needs more than the first."""
        return self.microseconds[-1] - self.microseconds[0]


def block_times(profile: Profile) -> list[BlockTime]:
    """Return the blocks of a network of many nodes, those that lose most time first; none where
    most nodes are a block of their own."""
    members: dict[str, list[tuple[float, ...]]] = {}
    for node in profile.nodes:
        members.setdefault(block_of(node.name), []).append(node.microseconds)
    if len(profile.nodes) <= FEW or 2 * len(members) > len(profile.nodes):
        return []
    rows = [
        BlockTime(name, len(times), tuple(np.sum(times, 0).tolist()))
        for name, times in members.items()
    ]
    return sorted(rows, key=lambda row: -row.loss)
