"""The precisions that a search may give to a layer, and recipes that give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType

from qtool.algorithms.error_sources import exact_selector
from qtool.core.types import Observed
from qtool.planning.plan import Decision, Execution, QuantPlan
from qtool.planning.recipe import Rule

CHOICES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "static": {"scheme": "static"},
        "static-16": {"scheme": "static", "activations": "uint16"},
        "dynamic": {"scheme": "dynamic"},
        "int8-weights": {"scheme": "int8-weights"},
        "int4-weights": {"scheme": "int4-weights"},
        "int2-weights": {"scheme": "int2-weights"},
        "float": {"scheme": "float"},
    }
)
"""Fields of a recipe rule, by the name of the choice."""

FLOAT = "float"
_WIDE = 16  # bits of an activation


def rules_of(nodes: Iterable[str], layers: Set[str], choice: str) -> Iterator[Rule]:
    """Yield a rule for each node: layers get the choice; what is between them is in float, where
    the choice has no codes for it.

    Args:
        nodes: names, in the order of the rules.
        layers: those with weights or MACs.
        choice: a key of `CHOICES`.
    """
    for name in nodes:
        if name in layers or choice.startswith("static"):
            yield Rule(select=exact_selector(name), **CHOICES[choice])
        else:
            yield Rule(select=exact_selector(name), scheme=FLOAT)


def layers_of(plan: QuantPlan) -> tuple[Decision, ...]:
    """Return the quantized nodes of a plan with MACs or weights, in order of computation."""
    return tuple(
        d
        for d in plan.nodes
        if (d.macs or any(i.endswith(".weight") for i in d.inputs))
        and d.execution in (Execution.INTEGER, Execution.DYNAMIC, Execution.WEIGHTS)
    )


def choices_of(plan: QuantPlan, layers: Sequence[Decision]) -> tuple[str, ...]:
    """Return the precision of each layer in another plan of the same network."""
    return tuple(_choice(plan, plan.decision(layer.node)) for layer in layers)


def _choice(plan: QuantPlan, decision: Decision | None) -> str:
    if decision is None or decision.execution not in _NAMES:
        return FLOAT
    bits = {
        name: plan.point(plan.root(name)).spec.qtype.bits  # type: ignore[union-attr]
        for name in decision.inputs
        if isinstance(plan.point(plan.root(name)).spec, Observed)
    }
    weights = [count for name, count in bits.items() if name.endswith(".weight")]
    if decision.execution is Execution.WEIGHTS:
        return f"int{min(weights, default=8)}-weights"
    wide = decision.execution is Execution.INTEGER and _WIDE in bits.values()
    return "static-16" if wide else _NAMES[decision.execution]


_NAMES = {
    Execution.INTEGER: "static",
    Execution.DYNAMIC: "dynamic",
    Execution.WEIGHTS: "int8-weights",
}
