"""Means of a layer's inputs and targets over all data, from which its bias is corrected."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from qtool.algorithms.layer_rows import (
    channel_mean,
    channel_sums,
    input_mean,
    input_sums,
    reads_features,
)

Part = tuple[torch.Tensor, float]
"""A sum, and the number of what it sums."""


class LayerMeans:
    """Sums of all rows of a layer, batch by batch: one for each shape of the samples."""

    def __init__(self, node: fx.Node) -> None:
        self._node = node
        self._inputs, self._results = dict[torch.Size, Part](), dict[torch.Size, Part]()

    def add(self, x: torch.Tensor, target: torch.Tensor) -> None:
        """Add a batch: the input of the layer in the quantized network, and its target."""
        channel = -1 if reads_features(self._node) else 1
        _add(self._inputs, input_sums(self._node, x))
        _add(self._results, channel_sums(target, channel))

    def mean_input(self) -> torch.Tensor:
        """Return the mean row of inputs, float64 [groups, in]."""
        return input_mean(self._node, list(self._inputs.values()))

    def mean_target(self) -> torch.Tensor:
        """Return the mean target of each channel, float64 [channels]."""
        return channel_mean(list(self._results.values()))


def _add(parts: dict[torch.Size, Part], new: Part) -> None:
    known: Mapping[torch.Size, Part] = parts
    total, weight = known.get(new[0].shape, (0, 0.0))
    parts[new[0].shape] = total + new[0], weight + new[1]
