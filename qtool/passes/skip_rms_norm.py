"""RMSNorm of a sum, in decoders: the sum of a residual connection, which later layers read, too.

One kernel of the runtime adds and normalizes, and returns both.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops.norms import skip_rms_norm as fused
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import is_call

aten = torch.ops.aten


def _match(node: fx.Node) -> tuple[Any, ...] | None:
    """Return the arguments of the operator if a node normalizes a sum."""
    if not is_call(node, aten.rms_norm.default) or len(node.args) != 4:
        return None
    total, sizes, weight, eps = node.args
    if not is_call(total, aten.add.Tensor) or weight is None or eps is None:
        return None
    assert isinstance(total, fx.Node)
    x, skip = total.args
    if not isinstance(x, fx.Node) or not isinstance(skip, fx.Node) or len(sizes) != 1:  # type: ignore[arg-type]  # a list
        return None
    shape = str(G.shape(total))
    same = str(G.shape(x)) == shape and str(G.shape(skip)) == shape
    values = (G.value(n) for n in (x, skip, weight))  # type: ignore[arg-type]  # nodes
    single = {value.dtype for value in values} == {torch.float32}
    return (x, skip, weight, eps) if same and single and G.rank(total) == 3 else None


def _rewrite(module: fx.GraphModule, node: fx.Node, args: tuple[Any, ...]) -> None:
    total: Any = node.args[0]
    if not is_call(total, aten.add.Tensor):  # normalized twice, by the first time
        return
    first = min((n for n in total.users), key=list(module.graph.nodes).index)
    name = G.name_of(node)
    args = (*total.args, *args[2:])  # an operand may have become the sum of a norm before
    pair = G.add_call(first, fused, args, name, node)
    outputs = [G.add_call(first, operator.getitem, (pair, i), f"{name}.{i}", node) for i in (0, 1)]
    total.replace_all_uses_with(outputs[1], delete_user_cb=lambda user: user is not pair)
    G.replace(node, outputs[0])


skip_rms_norm = pattern_pass(
    "skip_rms_norm", _match, _rewrite, "one kernel adds a residual and normalizes the sum"
)
