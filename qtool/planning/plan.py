"""The plan: which tensors are quantized, how, and who computes in integers. Pure data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

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


class Kind(Enum):
    """What a point quantizes."""

    ACTIVATION = "activation"
    WEIGHT = "weight"
    BIAS = "bias"
    CONSTANT = "constant"  # a stored tensor that an operator reads as it reads activations


class Execution(Enum):
    """How a node is run."""

    INTEGER = "integer"
    DYNAMIC = "dynamic"  # integer, its input quantized as it comes
    WEIGHTS = "weights"  # integer weights, float arithmetic
    PASS = "pass"  # it moves codes
    FUSED = "fused"  # into the node before it
    FLOAT = "float"
    SHAPE = "shape"  # its result is no float tensor


@dataclass(frozen=True)
class Edge:
    """Where a point stands: `user` (`OUTPUT`: the graph itself) reads the tensor `source` there."""

    source: str
    user: str


@dataclass(frozen=True)
class Point:
    """One quantized tensor.

    name: unique; the name of the tensor it quantizes (of the layer, for weights and biases).
    edges: the reads that see the quantized tensor; reads not listed see the float one.
    """

    name: str
    kind: Kind
    spec: Spec
    edges: tuple[Edge, ...]

    @property
    def tensor(self) -> str:
        """The name of the tensor; of a point that nobody reads its own."""
        return self.edges[0].source if self.edges else self.name


@dataclass(frozen=True)
class Probe:
    """Something that a step of the conversion wants to have seen of the float network.

    name: its key in the calibration, "tensor.what". tensor: the node whose value is watched.
    statistic: which one, by the name of its observer; along `axis`, or of the whole tensor.
    """

    name: str
    tensor: str
    statistic: ObserverSpec
    axis: int | None = None


@dataclass(frozen=True)
class Decision:
    """What becomes of one node: integer or float, and why.

    op: the operator's key, or its ATen name where it has no row.
    macs: multiply-accumulates for one sample.
    inputs, output: the points around it (output None: the result is float).
    codes_only: its result can only be had in codes, since its kernel rounds it.
    """

    node: str
    op: str
    execution: Execution
    reason: str
    macs: int = 0
    inputs: tuple[str, ...] = ()
    output: str | None = None
    codes_only: bool = False

    @property
    def computes_on_codes(self) -> bool:
        return self.execution in (Execution.INTEGER, Execution.DYNAMIC)


@dataclass(frozen=True)
class Rewrite:
    """A pass that brought the graph to forms its target is quick with."""

    name: str
    count: int
    reason: str


@dataclass(frozen=True)
class QuantPlan:
    """Everything that is decided about a model for a target. Prints as a table.

    observer, recipe: what it was made from, beside the graph and the target.
    rewrites: passes that the target asked for and steps of the conversion, how often each applied,
    and why it pays.
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
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def root(self, name: str) -> str:
        """The point whose parameters `name` uses: itself unless it shares."""
        spec = self.point(name).spec
        return self.root(spec.point) if isinstance(spec, SharedWith) else name

    @cached_property
    def placed(self) -> tuple[Point, ...]:
        """The points that stand somewhere: their codes are read, or requantized."""
        again = {p.spec.point for p in self.points if isinstance(p.spec, Requantized)}
        return tuple(p for p in self.points if p.edges or p.name in again)

    @cached_property
    def reads(self) -> dict[tuple[str, str], str]:
        """(tensor, who reads it) -> the point that stands between them."""
        return {(e.source, e.user): p.name for p in self.points for e in p.edges}

    def origin(self, name: str) -> tuple[str, float]:
        """The point whose parameters `name` uses, and the factor of its scale: points alike in both
        have codes that mean the same."""
        spec = self.point(name).spec
        if not isinstance(spec, SharedWith):
            return name, 1.0
        root, factor = self.origin(spec.point)
        return root, factor * spec.factor

    def observed(self) -> list[Point]:
        """The points whose ranges calibration has to find."""
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
        """(node, op, form, output parameters, reason) for every node."""
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
        table = [head, *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(4)]
        lines = [
            "  ".join(
                [*(c.ljust(w) for c, w in zip(row[:4], widths, strict=True)), row[4]]
            ).rstrip()
            for row in table
        ]
        notes = [f"rewritten {r.count}x: {r.name} ({r.reason})" for r in self.rewrites]
        return "\n".join([f"target {self.target}", *lines, *notes])


def describe_spec(spec: Spec) -> str:
    """One spec in a few words, for tables."""
    match spec:
        case Observed(qtype, observer, axis, symmetric, block):
            where = "per tensor" if axis is None else f"per channel (axis {axis})"
            where = where if block is None else f"per block of {block} (axis {axis})"
            return f"{qtype} {'symmetric ' if symmetric else ''}{where}, {observer}"
        case Dynamic(qtype):
            return f"{qtype}, range of each batch"
        case Fixed(params):
            return f"{params.qtype} fixed"
        case SharedWith(point, factor):
            return f"as {point}" if factor == 1.0 else f"as {point}, scale x {factor:.6g}"
        case Requantized(point, qtype):
            return f"{qtype}, requantized from {point}"
        case Derived():
            return "int32, input x weight"
        case Float(reason):
            return f"float: {reason}"
