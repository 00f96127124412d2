"""Scales of activations multiplied by a factor, with everything that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qtool.core.types import Derived, QuantParams
from qtool.planning.plan import QuantPlan


def rescale_activations(
    plan: QuantPlan, params: Mapping[str, QuantParams], factors: Mapping[str, float]
) -> dict[str, QuantParams]:
    """Parameters of all points after some scales are multiplied.

    Args:
        params: of each point. factors: by the root point (`QuantPlan.root`); the points that share
            its parameters take its factor, and biases the product of their input's and weight's.
    """
    result = dict(params)
    for point in plan:
        factor = factors.get(plan.root(point.name))
        if factor is not None:
            old = params[point.name]
            result[point.name] = replace(old, scale=old.scale * factor)
    for point in plan:
        if isinstance(point.spec, Derived):
            scale = result[point.spec.input].scale * result[point.spec.weight].scale
            result[point.name] = replace(result[point.name], scale=scale)
    return result
