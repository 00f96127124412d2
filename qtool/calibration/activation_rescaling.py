"""Multiplies scales of activations, and updates the scales derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qtool.core.quant_params import QuantParams
from qtool.core.types import Derived
from qtool.planning.plan import QuantPlan


def rescale_activations(
    plan: QuantPlan, params: Mapping[str, QuantParams], factors: Mapping[str, float]
) -> dict[str, QuantParams]:
    """Return the parameters of all points after some scales are multiplied.

    Args:
        plan: the points.
        params: point -> parameters.
        factors: root point (`QuantPlan.root`) -> factor. Points that share its parameters get the
            same factor; a bias gets the product of its input's and weight's scales.
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
