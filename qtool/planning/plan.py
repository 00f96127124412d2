"""The plan: which tensors are quantized and how, and how each node runs. Pure data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from qtool.core import number_texts
from qtool.core.number_texts import table
from qtool.core.summary import Printed
from qtool.core.types import (
    Derived,
    Dynamic,
    Fixed,
    Float,
    Observed,
    ObserverSpec,
    Requantized,
    SharedWith,
    Spec,
)
from qtool.planning.recipe import Recipe

RESULT = "result"
"""The operator name of one of several results of a node."""


class Kind(Enum):
    """What a point quantizes."""

    ACTIVATION = "activation"
    WEIGHT = "weight"
    BIAS = "bias"
    CONSTANT = "constant"  # a stored tensor in place of an activation


class Execution(Enum):
    """How a node runs."""

    INTEGER = "integer"
    DYNAMIC = "dynamic"  # integer, its input quantized in each run
    WEIGHTS = "weights"  # integer weights, float arithmetic
    PASS = "pass"  # moves codes
    FUSED = "fused"  # into the node before it
    FLOAT = "float"
    SHAPE = "shape"  # the result is not a float tensor


@dataclass(frozen=True)
class Edge:
    """A read of a tensor.

    Attributes:
        source: name of the tensor.
        user: name of the node that reads it (`OUTPUT`: the graph itself).
    """

    source: str
    user: str


@dataclass(frozen=True)
class Point:
    """One quantized tensor.

    Attributes:
        name: unique; the name of the tensor (of the layer, for weights and biases).
        kind: what the tensor is.
        spec: how it gets its parameters.
        edges: the reads of the quantized tensor; other reads take the float one.
    """

    name: str
    kind: Kind
    spec: Spec
    edges: tuple[Edge, ...]

    @property
    def tensor(self) -> str:
        """The name of the tensor; of a point without readers its own name."""
        return self.edges[0].source if self.edges else self.name


@dataclass(frozen=True)
class Probe:
    """A statistic of the float network that a step of the conversion needs.

    Attributes:
        name: its key in the calibration, "tensor.statistic".
        tensor: the node whose value is observed.
        statistic: the statistic, by the name of its observer.
        axis: one statistic for each index along this axis; None: one for the tensor.
    """

    name: str
    tensor: str
    statistic: ObserverSpec
    axis: int | None = None


@dataclass(frozen=True)
class Decision:
    """How one node runs, and why.

    Attributes:
        node: its name.
        op: the operator's key, or its ATen name where it has no row.
        execution: how it runs.
        reason: why, for people.
        macs: multiply-accumulates for one sample; 0 if they are not known.
        inputs: points that it reads.
        output: the point of its result; None: the result is float.
        codes_only: the result exists in codes only, since the kernel rounds it.
        macs_known: whether its multiply-accumulates are known.
        channels: the channels of a depthwise convolution in the file, zeros included; 0: its own.
    """

    node: str
    op: str
    execution: Execution
    reason: str
    macs: int = 0
    inputs: tuple[str, ...] = ()
    output: str | None = None
    codes_only: bool = False
    macs_known: bool = True
    channels: int = 0

    @property
    def computes_on_codes(self) -> bool:
        return self.execution in (Execution.INTEGER, Execution.DYNAMIC)


@dataclass(frozen=True)
class Rewrite:
    """A pass that brought the graph to forms its target runs fast, or a conversion step.

    Attributes:
        name: name of the pass or step.
        count: how often it applied.
        reason: why it pays.
    """

    name: str
    count: int
    reason: str


@dataclass(frozen=True)
class QuantPlan(Printed):
    """Every decision about a model for a target. Prints as a table.

    Attributes:
        target: name of the target.
        observer: the default observer that it was planned with.
        recipe: the recipe that it was planned with.
        points: the quantized tensors.
        nodes: how each node runs.
        rewrites: passes for the target and steps of the conversion that changed the graph.
    """

    target: str
    observer: ObserverSpec
    recipe: Recipe
    points: tuple[Point, ...]
    nodes: tuple[Decision, ...]
    rewrites: tuple[Rewrite, ...] = ()

    @cached_property
    def _by_name(self) -> dict[str, Point]:
        return {p.name: p for p in self.points}

    def point(self, name: str) -> Point:
        """Return the point of that name."""
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def root(self, name: str) -> str:
        """Return the point whose parameters `name` uses: itself unless it shares."""
        spec = self.point(name).spec
        return self.root(spec.point) if isinstance(spec, SharedWith) else name

    @cached_property
    def placed(self) -> tuple[Point, ...]:
        """The points whose codes are read or requantized."""
        requantized = {p.spec.point for p in self.points if isinstance(p.spec, Requantized)}
        return tuple(p for p in self.points if p.edges or p.name in requantized)

    @cached_property
    def reads(self) -> dict[tuple[str, str], str]:
        """(tensor, reader) -> the point between them."""
        return {(e.source, e.user): p.name for p in self.points for e in p.edges}

    def origin(self, name: str) -> tuple[str, float]:
        """Return the point whose parameters `name` uses, and the factor of its scale.

        Codes of points with equal origins have equal meanings.
        """
        spec = self.point(name).spec
        if not isinstance(spec, SharedWith):
            return name, 1.0
        root, factor = self.origin(spec.point)
        return root, factor * spec.factor

    def observed(self) -> list[Point]:
        """Return the activations whose ranges come from calibration."""
        return [
            p for p in self.points if p.kind is Kind.ACTIVATION and isinstance(p.spec, Observed)
        ]

    @cached_property
    def low_bits(self) -> bool:
        """Whether any weight has fewer than 8 bits."""
        specs = (p.spec for p in self.points if p.kind is Kind.WEIGHT)
        return any(isinstance(s, Observed) and s.qtype.bits < 8 for s in specs)

    @cached_property
    def _decisions(self) -> dict[str, Decision]:
        return {d.node: d for d in self.nodes}

    def decision(self, node: str) -> Decision | None:
        """Return the decision about a node, by its name."""
        return self._decisions.get(node)

    @cached_property
    def digest(self) -> str:
        """A short hash of the whole plan; written into every exported file."""
        rows = [
            [p.name, p.kind.value, describe_spec(p.spec), [[e.source, e.user] for e in p.edges]]
            for p in self
        ]
        nodes = [[d.node, d.op, d.execution.value] for d in self.nodes]
        text = json.dumps([self.target, rows, nodes])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return (node, op, execution, output parameters, reason) of every node."""
        return [
            (
                d.node,
                d.op,
                d.execution.value,
                describe_spec(self.point(d.output).spec) if d.output else "float",
                d.reason,
            )
            for d in self.nodes
        ]

    def __str__(self) -> str:
        head = ("node", "op", "runs as", "output", "why")
        nodes = table(head, self.rows(), f"target {self.target}", align="lllll")
        notes = [f"rewritten {r.count}x: {r.name} ({r.reason})" for r in self.rewrites]
        return "\n".join([nodes, *notes])


def describe_spec(spec: Spec) -> str:
    """Return a spec in a few words, for tables."""
    match spec:
        case Observed(qtype, observer, axis, symmetric, block):
            where = "per tensor" if axis is None else f"per channel (axis {axis})"
            where = where if block is None else f"per block of {block} (axis {axis})"
            return f"{qtype} {'symmetric ' if symmetric else ''}{where}, {observer}"
        case Dynamic(qtype, per_row):
            return f"{qtype}, range of each {'row' if per_row else 'batch'}"
        case Fixed(qtype):
            return f"{qtype} fixed"
        case SharedWith(point, factor):
            return f"as {point}" if factor == 1.0 else f"as {point}, scale x {factor:.6g}"
        case Requantized(point, qtype):
            return f"{qtype}, requantized from {point}"
        case Derived():
            return "int32, input x weight"
        case Float(reason):
            return f"float: {reason}"


# What quantized files are called: by their mode, and by what their plan has.

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
