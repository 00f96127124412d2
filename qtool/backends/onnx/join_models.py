"""Joins models that are connected by the names of their outputs and inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from qtool.backends.onnx.nested_graphs import inner_graphs
from qtool.core.unique_names import unique


def join_models(
    parts: Sequence[onnx.ModelProto], inputs: Iterable[str], outputs: Iterable[str]
) -> onnx.ModelProto:
    """Join parts that follow each other to one model.

    Inputs and outputs of a part keep their names; equal inner names of two parts are made unique.
    Operator sets, functions and the IR version are those of the parts, which agree in them.

    Args:
        parts: models in topological order.
        inputs, outputs: names of the joined model's, in order; each is one of a part.
    """
    ends = [v for p in parts for v in (*p.graph.input, *p.graph.output)]
    values, nodes = {v.name for v in ends}, set[str]()
    seams = frozenset(values)
    whole = onnx.ModelProto(ir_version=parts[0].ir_version, producer_name=parts[0].producer_name)
    whole.graph.name = parts[0].graph.name
    for part in parts:
        graph = part.graph
        inner = [t.name for t in graph.initializer]
        inner += [name for node in graph.node for name in node.output if name]
        renamed = {}
        for name in dict.fromkeys(inner):
            if name not in seams:
                renamed[name] = unique(name, values)
                values.add(renamed[name])
        for tensor in graph.initializer:
            tensor.name = renamed.get(tensor.name, tensor.name)  # a part may return a constant
        for info in graph.value_info:
            info.name = renamed.get(info.name, info.name)
        for node in graph.node:
            node.name = unique(node.name, nodes)
            nodes.add(node.name)
            _rename(node, renamed)
        whole.graph.node.extend(graph.node)
        whole.graph.initializer.extend(graph.initializer)
        whole.graph.value_info.extend(graph.value_info)
        _add_missing(whole, part)
    known = {v.name: v for v in ends}
    outer = {*inputs, *outputs}
    whole.graph.input.extend(known[name] for name in inputs)
    whole.graph.output.extend(known[name] for name in outputs)
    listed = {v.name for v in whole.graph.value_info} | outer
    whole.graph.value_info.extend(v for name, v in known.items() if name not in listed)
    return whole


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename what a node reads and produces, also in its subgraphs."""
    for field in (node.input, node.output):
        field[:] = [names.get(name, name) for name in field]
    for graph in inner_graphs(node):
        own = {v.name for v in (*graph.input, *graph.initializer)}
        own |= {name for inner in graph.node for name in inner.output}
        outside = {k: v for k, v in names.items() if k not in own}
        for inner in graph.node:
            _rename(inner, outside)
        for value in graph.output:
            value.name = outside.get(value.name, value.name)


def _add_missing(whole: onnx.ModelProto, part: onnx.ModelProto) -> None:
    """Add operator sets and functions that the joined model lacks."""
    domains = {o.domain for o in whole.opset_import}
    whole.opset_import.extend(o for o in part.opset_import if o.domain not in domains)
    functions = {(f.domain, f.name) for f in whole.functions}
    whole.functions.extend(f for f in part.functions if (f.domain, f.name) not in functions)
