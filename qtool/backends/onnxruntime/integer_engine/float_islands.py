"""Float steps of a program joined to islands that the runtime runs as one graph each.

A step's level counts how often the way to it changes between the runtime's nodes and the engine's
kernels. Nodes of one level have no kernel of the engine between them, on any way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import onnx_ir as ir

from qtool.backends.onnx.reading import OnnxModel, name_of
from qtool.backends.onnxruntime.integer_engine.integer_program import Instruction
from qtool.backends.onnxruntime.integer_engine.runtime_node import runtime_graph


def join_islands(
    steps: tuple[Instruction, ...], nodes: Mapping[str, ir.Node], file: OnnxModel
) -> tuple[Instruction, ...]:
    """The steps, with one for all float nodes of a level.

    Args:
        nodes: first output of a step -> its node, for those that the runtime could run: float
            operators, and moves of tensors that are not in codes. A level of moves alone stays.
    """
    levels = _levels(steps, nodes)
    ordered = sorted(steps, key=lambda s: levels[s.output])  # stable: still runs in this order
    members: dict[int, list[Instruction]] = {}
    for step in ordered:
        if step.output in nodes:
            members.setdefault(levels[step.output], []).append(step)
    joined = list[Instruction]()
    for step in ordered:
        island = members.get(levels[step.output], []) if step.output in nodes else []
        if len(island) < 2 or all(s.kind != "float" for s in island):
            joined.append(step)
        elif step is island[0]:
            joined.append(_island(island, steps, nodes, file))
    return tuple(joined)


def _levels(steps: tuple[Instruction, ...], nodes: Collection[str]) -> dict[str, int]:
    """Output -> level of its step; inputs and constants have none."""
    found: dict[str, tuple[int, bool]] = {}
    for step in steps:
        here = step.output in nodes
        before = [found[n] for n in step.inputs if n in found]
        level = max((at + (kind is not here) for at, kind in before), default=int(here))
        found |= dict.fromkeys(step.outputs, (level, here))
    return {name: level for name, (level, _) in found.items()}


def _island(
    island: list[Instruction],
    steps: tuple[Instruction, ...],
    nodes: Mapping[str, ir.Node],
    file: OnnxModel,
) -> Instruction:
    inside = {id(s) for s in island}
    wanted = {n for s in steps if id(s) not in inside for n in s.inputs} | set(
        map(name_of, file.outputs)
    )
    outputs = tuple(o for s in island for o in s.outputs if o in wanted)
    parts = [nodes[s.output] for s in island]
    kernel, inputs = runtime_graph(parts, file, outputs, file.value_info)
    count = sum(s.node_count for s in island if s.kind == "float")
    first, last = island[0].name, island[-1].name
    return replace(
        island[0],
        name=f"{first} to {last}",
        kind="float",
        kernel=kernel,
        inputs=inputs,
        outputs=outputs,
        node_count=count,
    )
