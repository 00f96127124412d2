"""Nodes that compute the same from the same, as a layer that is called twice on one tensor: a
runtime computes one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from qtool.backends.onnx.reading import array_of, attributes_of, is_constant, name_of

_SMALL = 1 << 16  # values: a larger weight is stored once, and known by its name


def find_duplicates(nodes: Iterable[ir.Node]) -> Mapping[str, str]:
    """The name of a node -> that of the first one like it, where there is one; nodes in order."""
    made: dict[str, Any] = {}  # tensor -> what it is computed from
    first: dict[Any, str] = {}
    found = {}
    for node in nodes:
        inputs = tuple(_source(value, made) for value in node.inputs)
        own = (node.domain, node.op_type, str(sorted(attributes_of(node).items())), inputs)
        same = first.setdefault(own, str(node.name))
        if same != node.name:
            found[str(node.name)] = same
        made |= {name_of(o): (same, i) for i, o in enumerate(node.outputs)}
    return found


def _source(value: ir.Value | None, made: Mapping[str, Any]) -> Any:
    if value is None:
        return None
    name = name_of(value)
    array = array_of(value) if is_constant(value) and name not in made else None
    if array is None or array.size > _SMALL:
        return made.get(name, name)
    return str(array.dtype), array.shape, array.tobytes()
