"""Duplicate nodes, such as a layer that is called twice on one tensor: a runtime computes one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from qtool.backends.onnx.reading import array_of, attributes_of, is_constant, name_of

_SMALL = 1 << 16  # values: a larger weight is identified by its name


def find_duplicates(nodes: Iterable[ir.Node]) -> Mapping[str, str]:
    """Return the name of each duplicate -> the name of the first node like it.

    Args:
        nodes: in topological order.
    """
    source: dict[str, Any] = {}  # tensor -> what it is computed from
    first: dict[Any, str] = {}
    duplicates = {}
    for node in nodes:
        inputs = tuple(_source(value, source) for value in node.inputs)
        key = (node.domain, node.op_type, str(sorted(attributes_of(node).items())), inputs)
        original = first.setdefault(key, str(node.name))
        if original != node.name:
            duplicates[str(node.name)] = original
        source |= {name_of(o): (original, i) for i, o in enumerate(node.outputs)}
    return duplicates


def _source(value: ir.Value | None, source: Mapping[str, Any]) -> Any:
    if value is None:
        return None
    name = name_of(value)
    array = array_of(value) if is_constant(value) and name not in source else None
    if array is None or array.size > _SMALL:
        return source.get(name, name)
    return str(array.dtype), array.shape, array.tobytes()
