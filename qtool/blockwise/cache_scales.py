"""Scales of an int8 KV cache, from the keys and values of the float network.

A model without weights cannot compute them before it is captured, so blocks do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

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
    attentions = (n for n in calls if n.target is grouped_attention)
    return any(isinstance(n.args[at], fx.Node) for n in attentions for at in _SCALES.values())


def set_cache_scales(
    graph: G.FloatGraph, batches: Iterable[Sequence[torch.Tensor]], ranks: Ranks
) -> dict[str, torch.Tensor]:
    """Set the scales of int8 caches in a block, in place, and return them by attribute; none for a
    float cache.

    Args:
        graph: the block.
        batches: inputs of the block in the float network, this rank's.
        ranks: all of them take part.
    """
    scales, lasts = dict[fx.Node, fx.Node](), dict[str, str]()
    for node in G.calls(graph.graph):
        for source, at in _SCALES.items() if node.target is grouped_attention else ():
            new, scale, last = (node.args[i] for i in (source, at, _LAST))
            if isinstance(new, fx.Node) and isinstance(scale, fx.Node):
                assert isinstance(last, fx.Node)
                scales[new], lasts[G.name_of(new)] = scale, G.name_of(last)
    if not scales:
        return {}
    largest = _largest(graph, lasts, batches)
    for text in ranks.all_gather(json.dumps({name: t.tolist() for name, t in largest.items()})):
        for name, numbers in json.loads(text).items():
            other = torch.tensor(numbers)
            largest[name] = torch.maximum(largest.get(name, other), other)
    values = {}
    for new, constant in scales.items():
        values[str(constant.target)] = int8_scales(largest[G.name_of(new)])
        G.set_tensor(graph.module, constant, values[str(constant.target)])
    return values


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
