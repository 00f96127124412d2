"""The float graph, and what reads and edits it; used as `from qtool import graph as G`."""

from qtool.graph.edit import (
    add_call,
    add_tensor,
    clone,
    fake_mode,
    finish,
    free_name,
    infer,
    replace,
    set_attr_value,
)
from qtool.graph.float_graph import FloatGraph, Input
from qtool.graph.nodes import (
    NAME,
    argument,
    calls,
    is_float,
    name_of,
    output_nodes,
    placeholders,
    rank,
    same_sizes,
    shape,
    tensor,
    value,
)

__all__ = [
    "NAME",
    "FloatGraph",
    "Input",
    "add_call",
    "add_tensor",
    "argument",
    "calls",
    "clone",
    "fake_mode",
    "finish",
    "free_name",
    "infer",
    "is_float",
    "name_of",
    "output_nodes",
    "placeholders",
    "rank",
    "replace",
    "same_sizes",
    "set_attr_value",
    "shape",
    "tensor",
    "value",
]
