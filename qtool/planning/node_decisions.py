"""What the planner finds out about each node, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx

from qtool.core.ops import row_of
from qtool.core.schemes import Scheme
from qtool.core.types import ObserverSpec
from qtool.planning.plan import Point
from qtool.planning.recipe import Choice
from qtool.planning.targets import Target


@dataclass
class NodeDecisions:
    """What is known so far about each node."""

    graph: fx.Graph
    target: Target
    observer: ObserverSpec
    choices: dict[str, Choice]  # what the recipe says, by name
    known_observers: Mapping[str, ObserverSpec]
    integer: dict[fx.Node, Scheme] = field(default_factory=dict)
    passthrough: set[fx.Node] = field(default_factory=set)  # may pass codes through
    codes_only: set[fx.Node] = field(default_factory=set)  # can only be had in codes
    needs_codes: set[fx.Node] = field(default_factory=set)  # read in codes by somebody
    fused_into: dict[fx.Node, fx.Node] = field(
        default_factory=dict
    )  # clamp -> node it is fused into
    weight_only: dict[fx.Node, Scheme] = field(default_factory=dict)  # see stored_weights.py
    tied_tables: dict[fx.Node, fx.Node] = field(
        default_factory=dict
    )  # lookup -> layer, in its codes
    reasons: dict[fx.Node, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)

    def passes_codes(self, node: fx.Node) -> bool:
        """Whether a node moves codes that somebody reads."""
        return node in self.passthrough and (node in self.needs_codes or node in self.codes_only)


def operator_key(node: fx.Node) -> str:
    row = row_of(node)
    return row.key if row is not None else ""
