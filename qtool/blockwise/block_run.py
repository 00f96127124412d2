"""The run of a block: its layers to be rounded, and the level of each of its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from qtool.algorithms.acceptance import runtime_module
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.exclusive_layers import exclusive_layers
from qtool.algorithms.layer_rows import is_of_experts
from qtool.algorithms.residual_input import residual_input
from qtool.algorithms.weight_rounding.layer_solver import LayerSolver
from qtool.blockwise.layer_shards import BlockLayer
from qtool.core import graph as G
from qtool.core.graph.executor import Executor
from qtool.core.graph.levels import Levels
from qtool.distributed import Ranks, current
from qtool.metrics.output_errors import OutputErrors
from qtool.planning.plan import QuantPlan


@dataclass
class BlockOutcome:
    """The result of running a block.

    Attributes:
        weights: attribute -> solved weights of a layer, or its bias.
        float_biases: those of the biases that have no codes in the file.
        solvers: attribute -> names of the steps that solved it or parts of it.
        notes: sentences for the user.
        errors: name of a result -> its errors on the measured batches.
    """

    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    float_biases: dict[str, torch.Tensor] = field(default_factory=dict)
    solvers: dict[str, frozenset[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: dict[str, OutputErrors] = field(default_factory=dict)


@dataclass
class BlockRun:
    """A run of all batches through a block. Numbers are those of values in the executor.

    Attributes:
        plan: plan of the block.
        solvers: solvers of its layers, by the names of their steps.
        inputs: names of the block's inputs.
        outputs: name -> number.
        layers: number of the result -> layer to be rounded.
        levels: levels of the block, with its layers as stops.
        errors: name of a result -> number of a measured batch of this rank, noise and power.
        biases: number -> bias in the quantized network, of layers that are solved.
    """

    plan: QuantPlan
    executor: Executor
    solvers: Mapping[str, LayerSolver]
    inputs: Sequence[str]
    outputs: Mapping[str, int]
    layers: Mapping[int, BlockLayer]
    levels: Levels
    outcome: BlockOutcome
    ranks: Ranks
    errors: dict[str, list[tuple[int, list[float], list[float]]]] = field(default_factory=dict)
    biases: dict[int, torch.Tensor] = field(default_factory=dict)


def start_run(state: ConversionState, solvers: Mapping[str, LayerSolver]) -> BlockRun:
    """Return the run of a block, with the levels of its values. See `run_block`."""
    module = runtime_module(state)
    executor = Executor(replace(state.graph, module=module))
    layers = _layers(state, executor) if solvers else {}
    levels = Levels.of(executor, dict.fromkeys(layers, ()))
    ends = (executor.indices[G.name_of(n)] for n in G.output_nodes(module.graph))
    outputs = dict(zip(state.graph.outputs, ends, strict=True))
    inputs = [i.name for i in state.graph.inputs]
    sides = inputs, outputs, layers, levels
    return BlockRun(state.plan, executor, solvers, *sides, BlockOutcome(), current())


def _layers(state: ConversionState, run: Executor) -> dict[int, BlockLayer]:
    """Return the layers whose weights are quantized and read by no other node, by number."""
    layers = {}
    for name, layer in exclusive_layers(state).items():
        number = run.indices[name]
        reads = dict(run.calls[number].operands)
        residual = residual_input(run, number)
        if residual is not None and residual > number:  # not computed when the layer is rounded
            residual = None
        third = reads.get(2)  # the bias, or ids of experts
        bias, ids = (None, third) if is_of_experts(layer.node) else (third, None)
        layers[number] = BlockLayer(layer, number, reads[0], reads[1], bias, residual, ids)
    return layers
