"""Layer reconstruction, as in AdaRound and GPTQ: solves layers in order, in both networks.

The quantized and the float network run side by side on kept samples. A layer is solved from its
inputs in the quantized network, where all layers before it are solved already, and its target, its
result in the float network. Where that result is added to another tensor, the target is the float
sum: so the layer also compensates the error of the other tensor, and a residual network damps
errors in its stream. Layers that each match their own float result do not.

Layer-wise reconstruction is what AdaRound (Nagel et al. 2020) and GPTQ (Frantar et al. 2022) do;
`weight_rounding` and `bias_correction` are the solvers here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from qtool.algorithms.acceptance import quantized_module, ranks_for
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.cross_layer_equalization.gradient_sensitivity import run_backwards
from qtool.algorithms.exclusive_layers import Layer, LayerCall, exclusive_layers, with_constants
from qtool.algorithms.layer_rows import is_of_experts
from qtool.algorithms.layer_solution import LayerSolution, SolvedLayers, broadcast_solution
from qtool.algorithms.weight_rounding.layer_samples import (
    HOLDOUT_EVERY,
    BatchSlice,
    LayerSamples,
    is_holdout,
    slice_batch,
    slices_from_bytes,
    slices_to_bytes,
)
from qtool.algorithms.weight_rounding.layer_solver import COLUMNS
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.graph.file_parts import nodes_before_parts
from qtool.core.graph.levels import execution_order, run_by_levels
from qtool.core.graph.node_calls import Values
from qtool.core.types import Change
from qtool.distributed import Ranks, balance, interleave
from qtool.planning.plan import QuantPlan
from qtool.simulation.output_evidence import rows_of_nodes

MIN_SAMPLES = 8
ELEMENTS = 1 << 27  # limit for all live values of both networks; beyond, fewer samples are used
BATCH = 64
ROWS, LOW_BIT_ROWS = 24, 48  # per column, over all batches
MIN_ROWS = 8192  # of narrow layers, whose rows cost little


Solver = Callable[[QuantPlan, Layer, LayerSamples], LayerSolution]
"""Solves a layer from its samples; the target of the plan may limit pairs of weights."""


@dataclass
class LayerWalk:
    """One pass over the layers of a network, and the constants it found.

    Attributes:
        plan: plan of the network.
        calls: number of the result -> layer.
        solver: solves one layer.
        needs_rows: whether the solver reads single rows; else only their means.
        row_weights: layer -> number of a batch -> weight of each row.
        batches: number of batches of all ranks.
        ranks: share the batches (batch i is on rank i modulo their number) and layers.
        solved: what it has changed.
    """

    plan: QuantPlan
    calls: Mapping[int, LayerCall]
    solver: Solver
    needs_rows: bool
    row_weights: Mapping[str, Mapping[int, torch.Tensor]]
    batches: int
    ranks: Ranks
    solved: SolvedLayers = field(default_factory=SolvedLayers)

    def visit(
        self, numbers: Sequence[int], values: Sequence[Sequence[Values]]
    ) -> Mapping[int, torch.Tensor]:
        """Solve layers; return the values behind their points."""
        solve = self._solve_shared if self.ranks.is_distributed else self._solve_alone
        updates = dict[int, torch.Tensor]()
        for call, solution in solve([self.calls[i] for i in numbers], values):
            for place, value in self.solved.add(call.layer, solution).items():
                updates[call.operands[place]] = value
        return updates

    def _solve_alone(
        self, calls: Sequence[LayerCall], values: Sequence[Sequence[Values]]
    ) -> Iterator[tuple[LayerCall, LayerSolution]]:
        """Solve each layer before taking the samples of the next: one layer's are in memory."""
        for call in calls:
            samples = LayerSamples(call.layer.node, self._slices(call, values))
            yield call, self.solver(self.plan, call.layer, samples)

    def _solve_shared(
        self, calls: Sequence[LayerCall], values: Sequence[Sequence[Values]]
    ) -> Iterator[tuple[LayerCall, LayerSolution]]:
        """Solve the layers on several ranks.

        Samples are exchanged first, so that no rank waits for the solution of another.
        """
        ranks, samples = self.ranks, dict[int, LayerSamples]()
        owners = balance([_cost(call.layer) for call in calls], ranks.size)
        for call, owner in zip(calls, owners, strict=True):
            shares = ranks.gather(slices_to_bytes(self._slices(call, values)), owner)
            if owner == ranks.rank:
                slices = interleave([slices_from_bytes(data) for data in shares])
                samples[call.number] = LayerSamples(call.layer.node, slices)
        own = {
            call.number: self.solver(self.plan, call.layer, samples[call.number])
            for call in calls
            if call.number in samples
        }
        for call, owner in zip(calls, owners, strict=True):
            yield call, broadcast_solution(ranks, own.get(call.number), owner)

    def _slices(self, call: LayerCall, values: Sequence[Sequence[Values]]) -> list[BatchSlice]:
        """Return the samples of a layer in this rank's batches."""
        layer, slices = call.layer, list[BatchSlice]()
        limits, known = self._row_limits(layer), self.row_weights.get(layer.name)
        for k, (exact, coded) in enumerate(zip(*values, strict=True)):
            i = k * self.ranks.size + self.ranks.rank
            target, ids = call.target(exact, coded), call.experts(exact, coded)
            weights = None if known is None else known[i]
            rows = limits[is_holdout(i)]
            slices.append(
                slice_batch(layer.node, coded[call.operands[0]], target, weights, rows, ids)
            )
        return slices

    def _row_limits(self, layer: Layer) -> tuple[int, int]:
        """Return how many rows of a batch are used, to solve a layer and to judge the solution."""
        if not self.needs_rows:
            return 0, 0
        per_column = ROWS if layer.weight_params.qtype.bits >= 8 else LOW_BIT_ROWS
        rows = max(MIN_ROWS, per_column * min(layer.matrix.shape[-1], COLUMNS))
        if is_of_experts(layer.node):
            rows *= len(layer.matrix)  # each row is one of them
        holdout = sum(map(is_holdout, range(self.batches)))
        training = self.batches - holdout
        return max(1, rows // max(training, 1)), max(1, rows // 2 // max(holdout, 1))


def reconstruct_layers(
    state: ConversionState, *, step: str, reason: str, solver: Solver, needs_rows: bool = True
) -> ConversionState:
    """Return the state with new constants of all layers that own them, solved on kept samples.

    Without enough samples the state gets a note and no change.

    Args:
        state: state before the step.
        step, reason: name and reason of the change, which holds the constants that a file does not
            hold as codes.
        solver, needs_rows: see `LayerWalk`.
    """
    if state.calibration is None or len(kept := state.calibration.kept_samples) < MIN_SAMPLES:
        return state.without_samples(step)
    graph = replace(state.graph, module=quantized_module(state))
    executor = Executor(graph, device=graph.device)
    fit = ELEMENTS // max(1, 2 * executor.live_elements())  # samples in memory
    fewest = max(state.graph.batch_size_range()[0], 1)
    limit = max(fit, fewest)
    size = max(fewest, min(BATCH, min(kept.n_train, limit) // HOLDOUT_EVERY))
    samples = state.batches(size, limit, channels_last=True)
    if not samples:
        return state.without_samples(step)
    left, ranks = rows_of_nodes(state.graph), ranks_for(state, step)  # rows of both differ there
    layers = {name: each for name, each in exclusive_layers(state).items() if name not in left}
    own = range(ranks.rank, len(samples), ranks.size)
    nodes = [layer.node for layer in layers.values()]
    weights = token_weights(state.graph, samples, nodes, own)
    calls = _calls(executor, layers)
    walk = LayerWalk(state.plan, calls, solver, needs_rows, weights, len(samples), ranks)
    stops = {number: call.looks for number, call in calls.items()}
    run_by_levels(executor, samples[ranks.rank :: ranks.size], stops, walk.visit)
    solved = walk.solved
    if solved.notes and fit < min(kept.n_train, 2 * HOLDOUT_EVERY):
        solved.notes.append(f"{step}: memory limits it to {fit} of {kept.n_train} samples")
    count = len(solved.steps) if needs_rows else len(solved.constants)
    change = Change(step, count, reason, solved.float_constants)
    return with_constants(state, solved.constants).with_notes(*solved.notes).with_change(change)


def replay_constants(state: ConversionState, change: Change) -> ConversionState:
    """Restore the constants that are float; the others are read from the codes of the file."""
    return with_constants(state, change.arrays).with_change(change)


def _cost(layer: Layer) -> float:
    """Estimate the cost of solving a layer: the Hessian of its rows, and error feedback."""
    groups, outputs, inputs = layer.matrix.shape
    rows = max(MIN_ROWS, ROWS * min(inputs, COLUMNS))
    return float(groups * inputs * (rows * (inputs + 2 * outputs) + inputs * (inputs + outputs)))


def _calls(run: Executor, layers: Mapping[str, Layer]) -> dict[int, LayerCall]:
    """Return the layers by the numbers of their results; `run_by_levels` has their order."""
    numbers = {run.indices[name] for name in layers}
    place = {i: k for k, i in enumerate(execution_order(run.reads, numbers))}
    made = (LayerCall.of(layer, run, lambda i: place.get(i, -1)) for layer in layers.values())
    return {call.number: call for call in made}


# Weight of each row (token) of a layer in its reconstruction error: its effect on the outputs.
#
# All positions of an image are equally important, but tokens are not: a padded one reaches no
# output, and compensating what a few large ones lose by clipping would cost all the others. As in
# `gradient_sensitivity`, outputs are multiplied by random signs and run backwards. The weight of a
# row is the fourth root of the squared gradient, averaged over the layer's results (rows weighted
# by derivatives are also how Kim et al. 2025, GuidedQuant, round). Squared gradients differ so much
# from row to row that a layer would be fitted to few rows.


MAX_SQUARE = (
    1e30  # beyond, or no number: behind a norm of what does not vary; rows then count equally
)

aten = torch.ops.aten


def token_weights(
    graph: FloatGraph,
    batches: Sequence[Batch],
    layers: Collection[fx.Node],
    needed: Collection[int] | None = None,
) -> Mapping[str, Mapping[int, torch.Tensor]]:
    """Return row weights of the linear layers with several rows per sample.

    Args:
        needed: numbers of the batches to return, by default all.

    Returns:
        layer -> number of a batch -> float32 [*rows], without layers in front of parts of a file;
        empty where an operator has no derivative.
    """
    before = nodes_before_parts(graph.graph)
    names = {G.name_of(n) for n in layers if _has_tokens(graph, n) and n not in before}
    if not names:
        return {}
    weights: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    run = _Run(G.on_device(graph.module, graph.device), weights)
    inputs = [graph.tensors_of(b.to(graph.device)) for b in batches]
    try:
        ran = run_backwards(run, inputs, needed)
    except RuntimeError:
        return {}
    complete = ((name, each) for name, each in weights.items() if len(each) == len(ran))
    return {name: dict(zip(ran, each, strict=True)) for name, each in complete}


def _has_tokens(graph: FloatGraph, layer: fx.Node) -> bool:
    """Return whether a linear layer has more rows than samples, at the captured sizes."""
    rows = math.prod(G.hint(size) for size in G.shape(layer)[:-1])
    samples = [len(t) for t in graph.tensors_of(Batch(*graph.example)) if t.dim()]
    return layer.target is aten.linear.default and rows > max(samples, default=1)


class _Run(fx.Interpreter):
    """Runs a graph and collects the squared gradients of some results in the backward pass."""

    def __init__(self, module: fx.GraphModule, weights: Mapping[str, list[torch.Tensor]]) -> None:
        super().__init__(module)
        self.weights = weights

    def run_node(self, n: fx.Node) -> Any:
        value, name = super().run_node(n), G.name_of(n)
        if n.op == "get_attr":
            return value.detach()
        if name not in self.weights:
            return value

        def add(gradient: torch.Tensor | None) -> None:
            if gradient is not None:
                size = torch.linalg.vector_norm(gradient, dim=-1)  # no tensor of squares
                squares = (size.square() / gradient.shape[-1]).cpu()
                finite = squares.sum() < MAX_SQUARE
                self.weights[name].append(
                    squares.sqrt().sqrt() if finite else torch.ones_like(squares)
                )

        value = value if value.requires_grad else value.detach().requires_grad_()
        value.register_hook(add)
        return value
