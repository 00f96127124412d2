"""What each choice adds to the bytes of a file.

What is stored is known from the plan; what names and nodes take beside it is the same for every
layer of a choice, and is found from one whole file of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qtool.conversion.quantized import Quantized
from qtool.core import graph as G
from qtool.core.types import Array, Observed
from qtool.planning.plan import Kind
from qtool.search.choices import Config, SearchSpace

FLOAT_BITS, SCALE_BITS = 32, 32


def choice_sizes(
    space: SearchSpace,
    models: Mapping[Config, Quantized],
    whole: Mapping[Config, int],
    float_size: int,
) -> Array:
    """[choices of all groups] bytes more than in float.

    Args:
        models: one in which each group has each of its choices. whole: bytes of their files.
    """
    starts = np.cumsum([0, *(len(g.choices) for g in space.groups)])
    found = np.zeros(starts[-1])
    known = np.zeros(starts[-1], bool)
    for config, model in models.items():
        stored = _weight_bytes(model)
        places, added = [], []
        for i, group in enumerate(space.groups):
            places.append(starts[i] + config[i])
            added.append(sum(stored.get(layer, 0.0) for layer in group.layers))
        beside = (whole[config] - float_size - sum(added)) / len(added)
        for place, bytes_ in zip(places, added, strict=True):
            if not known[place]:
                found[place], known[place] = bytes_ + beside, True
    return found


def _weight_bytes(model: Quantized) -> dict[str, float]:
    """Layer -> bytes that its weights take more than in float; fewer as a rule."""
    nodes = {G.name_of(n): n for n in model.module.graph.nodes}
    found: dict[str, float] = {}
    for point in model.plan:
        if point.kind is not Kind.WEIGHT or not isinstance(point.spec, Observed):
            continue
        elements = G.tensor(model.module, nodes[point.edges[0].source]).numel()
        qtype, params = point.spec.qtype, model.parameters[point.name]
        bits = elements * (qtype.bits - FLOAT_BITS)
        bits += params.scale.numel() * (SCALE_BITS + qtype.bits)
        found[point.edges[0].user] = found.get(point.edges[0].user, 0.0) + bits / 8
    return found
