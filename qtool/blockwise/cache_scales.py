"""Scales of an int8 KV cache, from the keys and values of the float network.

A model without weights cannot compute them before it is captured, so blocks do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph.executor import Executor
from qtool.core.ops.attention import grouped_attention
from qtool.distributed import Ranks
from qtool.frontends.huggingface.causal_decoder import int8_scales

_LAST = 5  # argument of attention: index of the last token of each text
_SCALES = {1: 10, 2: 11}  # arguments: keys and values, and their scales


def has_cache_scales(calls: Iterable[fx.Node]) -> bool:
    """Return whether an attention among these calls has an int8 cache."""
    return any(map(_scales, calls))


def set_cache_scales(
    graph: G.FloatGraph, batches: Callable[[], Iterable[Sequence[torch.Tensor]]], ranks: Ranks
) -> dict[str, torch.Tensor]:
    """Set the scales of int8 caches in a block, in place, and return them by attribute; none for a
    float cache.

    Those of an attention follow from a run in which the ones before it have theirs, wherever the
    block ends.

    Args:
        graph: the block.
        batches: returns the inputs of the block in the float network, this rank's.
        ranks: all of them take part.
    """
    values = dict[str, torch.Tensor]()
    for node in G.calls(graph.graph):
        scales = _scales(node)
        if not scales:
            continue
        largest = _largest(
            graph, dict.fromkeys(scales, G.name_of(G.source(node, _LAST))), batches()
        )
        for text in ranks.all_gather(json.dumps({n: t.tolist() for n, t in largest.items()})):
            for name, numbers in json.loads(text).items():
                other = torch.tensor(numbers)
                largest[name] = torch.maximum(largest.get(name, other), other)
        for name, constant in scales.items():
            values[str(constant.target)] = int8_scales(largest[name])
            G.set_tensor(graph.module, constant, values[str(constant.target)])
    return values


def _scales(node: fx.Node) -> dict[str, fx.Node]:
    """Return the names of keys and values of an attention with an int8 cache, and their scales."""
    if node.target is not grouped_attention:
        return {}
    pairs = ((node.args[source], node.args[at]) for source, at in _SCALES.items())
    return {
        G.name_of(new): scale
        for new, scale in pairs
        if isinstance(new, fx.Node) and isinstance(scale, fx.Node)
    }


def _largest(
    graph: G.FloatGraph, lasts: Mapping[str, str], batches: Iterable[Sequence[torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return the largest magnitudes of keys and values by channel.

    Args:
        lasts: name of keys or values -> name of the index of the last token of each text; what is
            behind it is padding.
    """
    run, largest = Executor(graph, single_run=True), dict[str, torch.Tensor]()
    wanted = [*lasts, *lasts.values()]
    for batch in batches:
        values = dict(run.stream(graph.call_of(batch), frozenset(), wanted))
        for name, last in lasts.items():
            new = values[name]  # [batch, tokens, channels]
            real = torch.arange(new.shape[1]) <= values[last][:, None]
            maximum = (new.abs() * real[:, :, None]).amax((0, 1))
            largest[name] = torch.maximum(largest.get(name, maximum), maximum)
    return largest
