"""A written-out rotary embedding, x * cos + rotate_half(x) * sin, becomes one operator.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, in the form of
transformers: cos and sin contain each angle twice, one half of the features after the other. ONNX
Runtime has one kernel for it in its own domain, in place of seven for the queries and seven for the
keys of each layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops.attention import grouped_attention, rotary_embedding, token_positions
from qtool.passes.graph_pass import GraphPass, first_match
from qtool.passes.rewrite_rules import clone_as, commuted, insert_before, is_call

aten = torch.ops.aten
_FEATUREWISE = frozenset({aten.cos.default, aten.sin.default, aten._to_copy.default})
_TRANSPOSED = ((1, 2), (2, 1))
_HEAD_STEP = 16  # the kernel rotates heads of a multiple of this many features
_QUERY, _KEY, _VALUE, _COS, _SIN, _HEADS = 0, 1, 2, 7, 8, 12
_FEW = 8  # positions that a table is checked at, at either end


def _rotated_half(node: Any) -> fx.Node | None:
    """Return x if a node is rotate_half(x): minus the second half, then the first."""
    parts: Any = node.args[0] if is_call(node, aten.cat.default) else ()
    if len(parts) != 2:
        return None
    minus, first = parts
    last = G.rank(node) - 1
    if not is_call(minus, aten.neg.default) or not is_call(first, aten.slice.Tensor):
        return None
    second, x = minus.args[0], G.source(first)
    if not is_call(second, aten.slice.Tensor) or second.args[0] is not x:
        return None
    width = G.shape(x)[-1]
    if not isinstance(width, int) or width % 2 or _axis(node) not in (-1, last):
        return None
    front = first.args[1:] == (last, 0, width // 2)
    end: Any = second.args[3]
    back = second.args[1:3] == (last, width // 2) and end >= width
    return x if front and back else None


def _axis(cat: fx.Node) -> Any:
    return G.argument(cat, 1, "dim", 0)


def _is_repeated(node: fx.node.Argument) -> bool:
    """Return whether both halves of a tensor's features are equal by construction."""
    while isinstance(node, fx.Node):
        if is_call(node, aten.cat.default):
            parts: Any = node.args[0]
            same = len(parts) == 2 and parts[0] is parts[1]
            return same and _axis(node) in (-1, G.rank(node) - 1)
        if not _is_featurewise(node):
            return False
        node = node.args[0]
    return False


def _is_featurewise(node: fx.Node) -> bool:
    scaled = is_call(node, aten.mul.Tensor) and isinstance(node.args[1], int | float)
    return node.target in _FEATUREWISE or scaled


def _parts(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """Return x [batch, heads, time, features], cos and sin [batch or 1, time, features]."""
    for plain, rotated in commuted(node, aten.add.Tensor):
        for x, cos in commuted(plain, aten.mul.Tensor):
            for other, sin in commuted(rotated, aten.mul.Tensor):
                if isinstance(x, fx.Node) and _rotated_half(other) is x and _fits(x, cos, sin):
                    return x, cos.args[0], sin.args[0]
    return None


def _fits(x: fx.Node, *angles: Any) -> bool:
    if G.rank(x) != 4 or G.value(x).dtype != torch.float32:
        return False
    batch, _, *sizes = G.shape(x)
    for each in angles:
        if not is_call(each, aten.unsqueeze.default) or each.args[1] not in (1, -3):
            return False
        shape = G.shape(each)
        if len(shape) != 4 or not _is_repeated(each.args[0]) or not G.same_sizes(shape[2:], sizes):
            return False
        if not G.same_sizes(shape[:1], (1,)) and not G.same_sizes(shape[:1], (batch,)):
            return False
        if not G.same_sizes(shape[:1], G.shape(angles[0])[:1]):
            return False
    return True


def _half(node: fx.Node, halves: dict[fx.Node, fx.Node]) -> fx.Node:
    """Return the first half of a tensor whose halves are equal, computed without the second."""
    if node in halves:
        return halves[node]
    if node.target is aten.cat.default:
        half = G.sources(node)[0]
    else:
        source = _half(G.source(node), halves)
        name = f"{G.name_of(node)}.half"
        half = G.add_call(node, node.target, (source, *node.args[1:]), name, node)
        half.kwargs = node.kwargs
        G.infer(half)
    halves[node] = half
    return half


def _rewrite(module: fx.GraphModule) -> int:
    matches = [(n, parts) for n in G.calls(module.graph) if (parts := _parts(n)) is not None]
    halves: dict[fx.Node, fx.Node] = {}
    for node, (x, *angles) in matches:
        args = (x, *(_half(each, halves) for each in angles))
        G.replace(node, clone_as(node, rotary_embedding, args))
    return len(matches)


rotary = GraphPass(
    "rotary",
    _rewrite,
    first_match(_parts),
    reason="one kernel of the runtime replaces seven",
)


# Attention over a KV cache takes projections as they come, and rotates queries and keys itself.
#
# Modules of transformers split queries and keys into heads, rotate them, and the operator joins the
# heads again: six operators in front of each attention that only move data, and two that rotate.
# The runtime's kernel has the rotation inside, with a table of angles for all positions.


def _fuse(module: fx.GraphModule) -> int:
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
        before = G.source(split)
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
    table = _evaluate(module, cone, positions, angle, torch.arange(limit))
    if table is None:
        return None
    for few in (torch.arange(min(_FEW, limit)), torch.arange(limit)[-_FEW:]):
        part = _evaluate(module, cone, positions, angle, few)
        if part is None or not torch.equal(part, table[few]):
            return None  # the angles of a token depend on others
    head = next(iter(module.graph.nodes))
    return G.add_tensor(module, head, table, f"{G.name_of(angle).removesuffix('.half')}.table")


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
) -> torch.Tensor | None:
    """Compute an angle [positions, angles] at these positions of one text; None if it depends on
    something else."""
    sizes = dict(zip(map(str, G.shape(positions)), (1, len(values)), strict=True))
    env: dict[fx.Node, Any] = {}
    for node in cone:
        if node is positions:
            env[node] = values[None]
        elif isinstance(size := G.value(node), torch.SymInt):
            if str(size) not in sizes:
                return None
            env[node] = sizes[str(size)]
        elif node.op == "get_attr":
            env[node] = G.read_values(G.tensor(module, node)).cpu()
        elif node.op == "call_function":
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: env[n])
            env[node] = G.run_operator(node, args, kwargs)
        else:
            return None
    result: torch.Tensor = env[angle]
    return result[0].contiguous()


rotary_attention = GraphPass(
    "rotary_attention",
    _fuse,
    reason="the kernel of attention rotates and splits heads itself",
)
