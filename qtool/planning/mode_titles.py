"""What quantized files are called: by their mode, and by what their plan has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qtool.core import number_texts
from qtool.planning.plan import Execution, Kind, QuantPlan

MODE_NAMES: Mapping[str, str] = {
    "static": "int8",
    "dynamic": "dynamic int8",
    "weight-only": "8-bit weights",
    "weight-only-int4": "4-bit weights",
    "weight-only-int2": "2-bit weights",
}
"""Mode -> name of a file of it next to float ones."""

_WIDTHS = (2, 4, 8, 16, 32)
_IN_INTEGERS = (Execution.INTEGER, Execution.DYNAMIC)


def plan_title(plan: QuantPlan) -> str:
    """Return the bits of weights and activations that a plan has: "8-bit weights and activations".

    Activations are those that operators compute on in integers. Where these are less than half of
    the compute, as far as it is known, the title has their share: "8-bit weights, 0.1 % of the
    compute in integers". Loops and the like, whose work is not known, may be most of a network.
    """
    unknown = sum(d.execution is Execution.FLOAT and not d.macs_known for d in plan.nodes)
    others = f", next to {number_texts.quantity(unknown, 'float operator')} of unknown work"
    return _title(plan) + (others if unknown else "")


def _title(plan: QuantPlan) -> str:
    weights = _bits(plan, (p.name for p in plan if p.kind is Kind.WEIGHT))
    activations = {p.name for p in plan if p.kind is Kind.ACTIVATION}
    integer = [d for d in plan.nodes if d.execution is Execution.INTEGER]
    read = {name for d in integer for name in (*d.inputs, d.output or "")} & activations
    static, parts = _bits(plan, read), [f"{weights}-bit weights"] if weights else []
    dynamic = any(d.execution is Execution.DYNAMIC for d in plan.nodes)
    computed = sum(d.macs for d in plan.nodes)
    known = sum(d.macs for d in plan.nodes if d.execution in _IN_INTEGERS)
    if (static or dynamic) and parts and 2 * known < computed:
        return f"{parts[0]}, {number_texts.share(known / computed)} of the compute in integers"
    if static and static == weights and not dynamic:
        return f"{static}-bit weights and activations"
    if static:
        parts.append(f"{static}-bit activations")
    if dynamic:
        parts.append(f"{'others' if static else 'activations'} quantized at run time")
    return ", ".join(parts if static or dynamic else [*parts, "float activations"])


def _bits(plan: QuantPlan, names: Iterable[str]) -> str:
    """Return the bits of stored codes, in words: "4- and 8"; "" for none."""
    types = (getattr(plan.point(plan.root(name)).spec, "qtype", None) for name in names)
    bits = {next(w for w in _WIDTHS if w >= t.bits) for t in types if t is not None}
    *first, last = map(str, sorted(bits)) if bits else ("",)
    return f"{'-, '.join(first)}- and {last}" if first else last
