"""Fallback for nodes without a torch form: parts of the file that ONNX Runtime runs.

A part is one node, or several that pass each other values that torch has no tensors for: sequences,
strings, 4-bit numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import helper, numpy_helper

from qtool.backends.onnx.nested_graphs import read_names
from qtool.backends.onnx.subgraph import OnnxSubgraph
from qtool.core.types import Array


@dataclass(frozen=True)
class FileContext:
    """Data of a file that all its nodes need.

    Attributes:
        opsets: operator sets of the file.
        ir_version: IR version of the file.
        constants: name -> array.
        used: names that a node or an output of the file reads, folded nodes excepted.
        types: tensor -> element type and rank, recorded while running.
    """

    opsets: tuple[onnx.OperatorSetIdProto, ...]
    ir_version: int
    constants: Mapping[str, Array]
    used: frozenset[str] = frozenset()
    types: dict[str, tuple[int, int]] = field(default_factory=dict)


def outputs_of(protos: Iterable[onnx.NodeProto]) -> list[str]:
    """Return the outputs of nodes, in order."""
    return [o for p in protos for o in p.output if o]


def inputs_of(protos: Sequence[onnx.NodeProto]) -> list[str]:
    """Return the values that the nodes read from outside, in order."""
    internal = set(outputs_of(protos))
    return list(dict.fromkeys(n for p in protos for n in read_names(p) if n not in internal))


def make_part(
    protos: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    tensors: Sequence[str],
    stored: Mapping[str, Array],
    source: FileContext,
    label: str,
) -> OnnxSubgraph:
    """Return nodes as a model of their own, which ONNX Runtime runs.

    Args:
        protos: the nodes.
        outputs: results that other nodes read.
        tensors: inputs at run time.
        stored: constants stored in the part.
        source: context of the file.
        label: name of the part.
    """
    infos = []
    for name in outputs:
        if name in source.types:
            kind, rank = source.types[name]
            infos.append(helper.make_tensor_value_info(name, kind, [None] * rank))
        else:
            infos.append(onnx.ValueInfoProto(name=name, type=onnx.TypeProto()))
    inputs = [onnx.ValueInfoProto(name=n) for n in tensors]
    arrays = [numpy_helper.from_array(a, n) for n, a in stored.items()]
    graph = helper.make_graph([_bare(p) for p in protos], label, inputs, infos, arrays)
    model = helper.make_model(graph, opset_imports=source.opsets, ir_version=source.ir_version)
    return OnnxSubgraph(model)


def _bare(proto: onnx.NodeProto) -> onnx.NodeProto:
    """Return the node without the exporter's metadata, which differs between machines."""
    bare = onnx.NodeProto()
    bare.CopyFrom(proto)
    bare.ClearField("doc_string")
    del bare.metadata_props[:]
    return bare


def group_nodes(
    nodes: Sequence[onnx.NodeProto], joined: frozenset[str]
) -> list[tuple[onnx.NodeProto, ...]]:
    """Return groups of nodes in execution order.

    Nodes connected by one of the `joined` values form a group, with the nodes between them.
    """
    makers = {o: i for i, n in enumerate(nodes) for o in n.output if o}
    before = [{makers[n] for n in read_names(node) if n in makers} for node in nodes]
    group = list(range(len(nodes)))
    for i, node in enumerate(nodes):
        for name in read_names(node):
            if name in joined and name in makers:
                _join(group, group[makers[name]], group[i])
    while (between := _between(before, group)) is not None:
        _join(group, *between)
    if len(set(group)) == len(nodes):
        return [(n,) for n in nodes]
    return [tuple(nodes[i] for i in members) for members in _ordered(before, group)]


def _ordered(before: Sequence[set[int]], group: Sequence[int]) -> list[list[int]]:
    """Return the members of each group, in execution order."""
    members: dict[int, list[int]] = {}
    for i, g in enumerate(group):
        members.setdefault(g, []).append(i)
    order: list[int] = []
    done: set[int] = set()
    while len(order) < len(members):
        for g, positions in members.items():
            if g not in done and {group[b] for i in positions for b in before[i]} <= done | {g}:
                done.add(g)
                order.append(g)
    return [members[g] for g in order]


def _join(group: list[int], a: int, b: int) -> None:
    for i, g in enumerate(group):
        group[i] = a if g == b else g


def _between(before: Sequence[set[int]], group: Sequence[int]) -> tuple[int, int] | None:
    """Return a group, and the group of a node on a path that leaves it and comes back."""
    sizes = {g for g in group if group.count(g) > 1} if len(set(group)) < len(group) else set()
    for g in sizes:
        behind: set[int] = set()  # nodes outside of the group that depend on it
        for i, sources in enumerate(before):
            reached = any(group[b] == g or b in behind for b in sources)
            if group[i] != g and reached:
                behind.add(i)
            elif group[i] == g and (path := sources & behind):
                return g, group[min(path)]
    return None
