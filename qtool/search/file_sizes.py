"""Bytes that each choice adds to a file.

The size of weights follows from the plan. Names and nodes add the same number of bytes for every
layer of a choice, which is measured on one file with that choice for all layers.
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
    """Return [choices of all groups] bytes of a choice minus those of float.

    Args:
        models: by configuration; together they have every choice of every group.
        whole: bytes of their files.
    """
    starts = np.cumsum([0, *(len(g.choices) for g in space.groups)])
    sizes = np.zeros(starts[-1])
    known = np.zeros(starts[-1], bool)
    for config, model in models.items():
        stored = _weight_bytes(model)
        places, added = [], []
        for i, group in enumerate(space.groups):
            places.append(starts[i] + config[i])
            added.append(sum(stored.get(layer, 0.0) for layer in group.layers))
        overhead = (whole[config] - float_size - sum(added)) / len(added)
        for place, bytes_ in zip(places, added, strict=True):
            if not known[place]:
                sizes[place], known[place] = bytes_ + overhead, True
    return sizes


def _weight_bytes(model: Quantized) -> dict[str, float]:
    """Return bytes of the weights of each layer minus those in float; mostly negative."""
    nodes = {G.name_of(n): n for n in model.module.graph.nodes}
    sizes: dict[str, float] = {}
    for point in model.plan:
        if point.kind is not Kind.WEIGHT or not isinstance(point.spec, Observed):
            continue
        elements = G.tensor(model.module, nodes[point.edges[0].source]).numel()
        qtype, params = point.spec.qtype, model.parameters[point.name]
        bits = elements * (qtype.bits - FLOAT_BITS)
        bits += params.scale.numel() * (SCALE_BITS + qtype.bits)
        layer = point.edges[0].user
        sizes[layer] = sizes.get(layer, 0.0) + bits / 8
    return sizes
