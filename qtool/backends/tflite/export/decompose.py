"""Operators without a writer, as the simpler ones that torch makes of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from qtool.core import graph as G


def decomposed(node: fx.Node) -> fx.Graph | None:
    """Return the graph of one call in core operators, its inputs in the order of the call's.

    None where torch has no simpler form.
    """
    tensors = [n for n in node.all_input_nodes if G.is_tensor(n)]
    place = {n: i for i, n in enumerate(tensors)}

    def call(*values: torch.Tensor) -> Any:
        def value(argument: fx.Node) -> Any:
            return values[place[argument]] if argument in place else G.value(argument)

        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), value)
        return node.target(*args, **kwargs)  # type: ignore[operator]  # it is called

    fakes = [G.value(n) for n in tensors]
    mode = next((f.fake_mode for f in fakes if hasattr(f, "fake_mode")), None)
    if mode is None:
        return None
    try:
        with mode:
            table: Any = core_aten_decompositions()
            parts = make_fx(call, decomposition_table=table)(*fakes)
    except Exception:  # noqa: BLE001  # torch's, by operator
        return None
    calls = [n for n in parts.graph.nodes if n.op == "call_function"]
    same = any(n.target is node.target for n in calls)
    constants = any(n.op == "get_attr" for n in parts.graph.nodes)
    return None if same or constants else parts.graph
