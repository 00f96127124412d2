"""A limit on expanded ONNX functions: a file of a few kB may expand to 2^26 nodes."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from qtool.backends.onnx.nested_graphs import nested_nodes

MAX_NODES = 1_000_000  # after functions are inlined


def function_expansion_error(model: onnx.ModelProto) -> str | None:
    """Return why the model's functions cannot be inlined, as ONNX Runtime does; None if they can.

    They are recursive, or expand to more than MAX_NODES nodes.
    """
    functions = {(f.domain, f.name): f.node for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Iterable[onnx.NodeProto], inside: frozenset[tuple[str, str]]) -> int:
        total = 0
        for node in nested_nodes(nodes):
            key = (node.domain, node.op_type)
            if key in inside:
                raise RecursionError(f"function {node.op_type} of the file calls itself")
            if key in functions and key not in sizes:
                sizes[key] = size(functions[key], inside | {key})
            total += sizes.get(key, 1)
        return total

    if not functions:
        return None
    try:
        total = size(model.graph.node, frozenset())
    except RecursionError as error:
        return str(error)
    if total <= MAX_NODES:
        return None
    return (
        f"the functions of the file expand to {total:,} nodes, the limit is {MAX_NODES:,}; check "
        "that this is the intended file"
    )
