"""Zero padding of the spatial dimensions is folded into the convolution behind it."""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import GraphPass, first_match
from qtool.passes.rewrite_rules import clone_as

aten = torch.ops.aten


def _foldable(conv: fx.Node) -> bool:
    pad = conv.args[0] if conv.target is torch_ops.conv else None
    if not isinstance(pad, fx.Node) or pad.target is not aten.constant_pad_nd.default:
        return False
    widths = G.items(pad, 1)
    spatial = 2 * (G.rank(conv) - 2)
    fill = G.argument(pad, 2, "value", 0)
    fixed = all(isinstance(w, int) and w >= 0 for w in widths)
    return fill == 0 and len(pad.users) == 1 and fixed and not any(widths[spatial:])


def _rewrite(module: fx.GraphModule) -> int:
    count = 0
    while (conv := _leftover(module)) is not None:  # one by one: a pad may follow another
        pad = G.source(conv)
        n = G.rank(conv) - 2
        widths = G.integers(pad, 1) + [0] * (2 * n)
        # ATen pads from the last dimension, (begin, end) by (begin, end); conv wants begins, ends.
        added = [widths[2 * (n - 1 - d)] for d in range(n)]
        added += [widths[2 * (n - 1 - d) + 1] for d in range(n)]
        pads = [a + b for a, b in zip(G.integers(conv, 4), added, strict=True)]
        args = (pad.args[0], *conv.args[1:4], pads, *conv.args[5:])
        folded = clone_as(conv, conv.target, args)
        earlier = conv.meta.get(G.FOLDED_PAD, [0] * (2 * n))
        folded.meta[G.FOLDED_PAD] = [a + b for a, b in zip(earlier, added, strict=True)]
        G.replace(conv, folded)
        module.graph.erase_node(pad)
        count += 1
    return count


_leftover = first_match(_foldable)
fold_pad = GraphPass("fold_pad", _rewrite, _leftover)
