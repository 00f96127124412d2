"""The planner's state: what is decided about each node so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx

from qtool.core import graph as G
from qtool.core.ops import Op, row_of
from qtool.core.schemes import Scheme
from qtool.core.types import ObserverSpec
from qtool.planning.plan import Point
from qtool.planning.recipe import Choice
from qtool.planning.targets import Target


@dataclass
class NodeDecisions:
    """The state of the planner.

    Attributes:
        graph: the canonical float graph.
        target: the target.
        observer: observer of tensors that no rule of the recipe names one for.
        choices: node name -> what the recipe decides.
        known_observers: tensor -> the observer of an existing calibration.
        slow: convolutions that stay in float, on stored codes, for speed -> the reason.
        integer: nodes that compute in integers -> their scheme.
        passthrough: nodes that can pass codes through.
        codes_only: nodes whose result exists in codes only.
        needs_codes: nodes whose result is read in codes.
        fused_into: clamp -> the node it is fused into.
        weight_only: nodes with integer weights and a float result -> their scheme; see
            weight_only.py.
        tied_tables: table lookup -> the layer with the same weight, whose codes it reads.
        reasons: node -> why it stays in float.
        points: the points so far.
    """

    graph: fx.Graph
    target: Target
    observer: ObserverSpec
    choices: dict[str, Choice]
    known_observers: Mapping[str, ObserverSpec]
    slow: Mapping[fx.Node, str] = field(default_factory=dict)
    integer: dict[fx.Node, Scheme] = field(default_factory=dict)
    passthrough: set[fx.Node] = field(default_factory=set)
    codes_only: set[fx.Node] = field(default_factory=set)
    needs_codes: set[fx.Node] = field(default_factory=set)
    fused_into: dict[fx.Node, fx.Node] = field(default_factory=dict)
    weight_only: dict[fx.Node, Scheme] = field(default_factory=dict)
    tied_tables: dict[fx.Node, fx.Node] = field(default_factory=dict)
    reasons: dict[fx.Node, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)

    def choice(self, node: fx.Node) -> Choice:
        """Return what the recipe decides about a node."""
        return self.choices[G.name_of(node)]

    def passes_codes(self, node: fx.Node) -> bool:
        """Return whether a node passes codes through that are read as codes."""
        return node in self.passthrough and (node in self.needs_codes or node in self.codes_only)

    def weight_only_reason(self, row: Op) -> str:
        """Return why only the weights of an operator are stored as codes; "" if they are not."""
        known = row.key in self.target.kernels or row.key in self.target.no_kernel
        return self.target.weight_only.get(row.key, "" if known else row.weight_only_reason)


def operator_key(node: fx.Node) -> str:
    """Return the operator key of a node, "" if it has no row."""
    row = row_of(node)
    return row.key if row is not None else ""
