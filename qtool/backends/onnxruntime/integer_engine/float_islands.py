"""Float islands: float instructions that the runtime runs together as one graph.

The level of an instruction counts how often a path to it changes between nodes of the runtime and
kernels of the engine. No kernel of the engine lies between two nodes of one level, on any path.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.reading import OnnxModel, name_of
from qtool.backends.onnxruntime.integer_engine.integer_program import Instruction
from qtool.backends.onnxruntime.integer_engine.runtime_node import runtime_graph


def join_islands(
    instructions: tuple[Instruction, ...], nodes: Mapping[str, Node], file: OnnxModel
) -> tuple[Instruction, ...]:
    """Join the float instructions of each level to one.

    Args:
        instructions: instructions of a program.
        nodes: first output of an instruction -> its node, for those that the runtime could run:
            float operators, and moves of float tensors. A level of moves only stays as it is.
        file: the model.
    """
    levels = _levels(instructions, nodes)
    ordered = sorted(instructions, key=lambda s: levels[s.output])  # stable: the order stays valid
    members: dict[int, list[Instruction]] = {}
    for instruction in ordered:
        if instruction.output in nodes:
            members.setdefault(levels[instruction.output], []).append(instruction)
    joined = list[Instruction]()
    for instruction in ordered:
        island = members.get(levels[instruction.output], []) if instruction.output in nodes else []
        if len(island) < 2 or all(s.kind != "float" for s in island):
            joined.append(instruction)
        elif instruction is island[0]:
            joined.append(_join(island, instructions, nodes, file))
    return tuple(joined)


def _levels(instructions: tuple[Instruction, ...], nodes: Collection[str]) -> dict[str, int]:
    """Return output -> level of its instruction; inputs and constants have none."""
    levels: dict[str, tuple[int, bool]] = {}
    for instruction in instructions:
        here = instruction.output in nodes
        before = [levels[n] for n in instruction.inputs if n in levels]
        level = max((at + (kind is not here) for at, kind in before), default=int(here))
        levels |= dict.fromkeys(instruction.outputs, (level, here))
    return {name: level for name, (level, _) in levels.items()}


def _join(
    island: list[Instruction],
    instructions: tuple[Instruction, ...],
    nodes: Mapping[str, Node],
    file: OnnxModel,
) -> Instruction:
    inside = {id(s) for s in island}
    needed = {n for s in instructions if id(s) not in inside for n in s.inputs} | set(
        map(name_of, file.outputs)
    )
    outputs = tuple(o for s in island for o in s.outputs if o in needed)
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
