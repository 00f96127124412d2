"""Attention over a KV cache takes projections as they come, and rotates queries and keys itself.

Modules of transformers split queries and keys into heads, rotate them, and the operator joins the
heads again: six operators in front of each attention that only move data, and two that rotate. The
runtime's kernel has the rotation inside, with a table of angles for all positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops.attention import grouped_attention, rotary_embedding, token_positions
from qtool.passes.graph_pass import GraphPass
from qtool.passes.rewrite_rules import insert_before, is_call

aten = torch.ops.aten
_TRANSPOSED = ((1, 2), (2, 1))
_HEAD_STEP = 16  # the kernel rotates heads of a multiple of this many features
_QUERY, _KEY, _VALUE, _COS, _SIN, _HEADS = 0, 1, 2, 7, 8, 12
_FEW = 8  # positions that a table is checked at, at either end


def _rewrite(module: fx.GraphModule) -> int:
    tables: dict[fx.Node, fx.Node | None] = {}
    nodes = [n for n in G.calls(module.graph) if n.target is grouped_attention]
    return sum(_rewrite_attention(module, node, tables) for node in nodes)


def _rewrite_attention(
    module: fx.GraphModule, node: fx.Node, tables: dict[fx.Node, fx.Node | None]
) -> int:
    if node.args[_KEY] is None or node.args[_COS] is not None:
        return 0
    joined: list[Any] = [_before_joining(node.args[i]) for i in (_QUERY, _KEY, _VALUE)]
    if None in joined:
        return 0
    angles = _rotate_inside(module, node, joined, tables)
    sources = [x.args[0] if angles and i < 2 else x for i, x in enumerate(joined)]
    flat = [_joined(node, x, i) for i, x in enumerate(sources)]
    if any(x is None for x in flat):
        return 0
    args = list(node.args)
    args[: _VALUE + 1] = flat
    args[_COS : _SIN + 1] = angles or args[_COS : _SIN + 1]
    node.args = tuple(args)
    return 1


def _before_joining(node: Any) -> fx.Node | None:
    """Return x [batch, heads, sequence, width] of x.transpose(1, 2).reshape(...)."""
    swapped: Any = node.args[0] if is_call(node, aten.reshape.default) else None
    if not is_call(swapped, aten.transpose.int) or swapped.args[1:] not in _TRANSPOSED:
        return None
    x: Any = swapped.args[0]
    return x if G.rank(x) == 4 and G.rank(node) == 3 else None


def _joined(node: fx.Node, x: Any, index: int) -> fx.Node | None:
    """Return x [batch, heads, sequence, width] as [batch, sequence, heads x width], unmoved."""
    if not is_call(x, aten.transpose.int) or x.args[1:] not in _TRANSPOSED:
        return None
    split = x.args[0]
    old: Any = node.args[index]
    if is_call(split, aten.reshape.default):
        before: fx.Node = split.args[0]
        if str(G.shape(before)) == str(G.shape(old)):
            return before
        if G.same_sizes(G.shape(before)[-1:], G.shape(old)[-1:]):
            split = before
    sizes = [*old.args[1][:2], G.shape(old)[-1]]
    return insert_before(node, aten.reshape.default, (split, sizes), f"input{index}")


def _rotate_inside(
    module: fx.GraphModule,
    node: fx.Node,
    joined: list[Any],
    tables: dict[fx.Node, fx.Node | None],
) -> list[fx.Node]:
    """Return tables of cos and sin if the kernel can rotate queries and keys, else nothing."""
    query, key = joined[:2]
    if not is_call(query, rotary_embedding) or not is_call(key, rotary_embedding):
        return []
    width = G.shape(query)[-1]
    if query.args[1:] != key.args[1:] or not isinstance(width, int) or width % _HEAD_STEP:
        return []
    angles = []
    for each in query.args[1:]:
        assert isinstance(each, fx.Node)
        if each not in tables:
            tables[each] = _table(module, each)
        angles.append(tables[each])
    return [a for a in angles if a is not None] if None not in angles else []


def _table(module: fx.GraphModule, angle: fx.Node) -> fx.Node | None:
    """Store an angle's values for all positions, [positions, angles]; None if it has others."""
    cone, positions = _cone(angle)
    if positions is None or not (limit := G.integer(positions, 2)):
        return None
    try:
        table = _evaluate(module, cone, positions, angle, torch.arange(limit))
        for few in (torch.arange(min(_FEW, limit)), torch.arange(limit)[-_FEW:]):
            if not torch.equal(_evaluate(module, cone, positions, angle, few), table[few]):
                return None  # the angles of a token depend on others
    except _OtherInputError:
        return None
    head = next(iter(module.graph.nodes))
    return G.add_tensor(module, head, table, f"{G.name_of(angle).removesuffix('.half')}.table")


class _OtherInputError(Exception):
    """Angles depend on something else than positions."""


def _cone(node: fx.Node) -> tuple[list[fx.Node], fx.Node | None]:
    """Return what a node is computed from, in order, behind the positions of tokens; these."""
    needed, queue, positions = set[fx.Node](), [node], None
    while queue:
        each = queue.pop()
        if each in needed:
            continue
        if each.target is token_positions:
            positions = each
        elif not isinstance(G.value(each), torch.SymInt):
            queue += each.all_input_nodes
        needed.add(each)
    return [n for n in node.graph.nodes if n in needed], positions


def _evaluate(
    module: fx.GraphModule,
    cone: list[fx.Node],
    positions: fx.Node,
    angle: fx.Node,
    values: torch.Tensor,
) -> torch.Tensor:
    """Compute an angle [positions, angles] at these positions of one text.

    Raises:
        _OtherInputError: it depends on something else.
    """
    sizes = dict(zip(map(str, G.shape(positions)), (1, len(values)), strict=True))
    env: dict[fx.Node, Any] = {}
    for node in cone:
        if node is positions:
            env[node] = values[None]
        elif isinstance(size := G.value(node), torch.SymInt):
            if str(size) not in sizes:
                raise _OtherInputError
            env[node] = sizes[str(size)]
        elif node.op == "get_attr":
            env[node] = G.read_values(G.tensor(module, node)).cpu()
        elif node.op == "call_function":
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: env[n])
            env[node] = G.run_operator(node, args, kwargs)
        else:
            raise _OtherInputError
    result: torch.Tensor = env[angle]
    return result[0].contiguous()


rotary_attention = GraphPass(
    "rotary_attention",
    _rewrite,
    reason="the kernel of attention rotates and splits heads itself",
    needs_whole_graph=True,  # all layers share the angles
)
