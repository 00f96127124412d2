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

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors.torch import load, save
from torch import fx

from qtool.algorithms.acceptance import quantized_module, ranks_for
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.cross_layer_equalization.gradient_sensitivity import run_backwards
from qtool.algorithms.exclusive_layers import Layer, exclusive_layers, with_constants
from qtool.algorithms.layer_rows import is_of_experts, residual_input, residual_target
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
from qtool.simulation.output_evidence import nodes_by_rows

MIN_SAMPLES = 8
ELEMENTS = 1 << 27  # limit for all live values of both networks; beyond, fewer samples are used
BATCH = 64
ROWS, LOW_BIT_ROWS = 24, 48  # per column, over all batches
MIN_ROWS = 8192  # of narrow layers, whose rows cost little


@dataclass(frozen=True, eq=False)
class LayerSolution:
    """New constants of one layer.

    Attributes:
        weight: weight on its grid; None where rounding to nearest is better.
        bias: None where the layer has none.
        note: a sentence for the user, or "".
    """

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    note: str = ""

    def to_bytes(self) -> bytes:
        constants = {"weight": self.weight, "bias": self.bias}
        tensors = {name: t.contiguous() for name, t in constants.items() if t is not None}
        return save(tensors, {"note": self.note})

    @classmethod
    def from_bytes(cls, data: bytes) -> LayerSolution:
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        tensors = load(data)
        return cls(tensors.get("weight"), tensors.get("bias"), head["__metadata__"]["note"])


Solver = Callable[[QuantPlan, Layer, LayerSamples], LayerSolution]
"""Solves a layer from its samples; the target of the plan may limit pairs of weights."""


@dataclass
class LayerWalk:
    """One pass over the layers of a network, and the constants it found.

    Attributes:
        plan: plan of the network.
        executor: executor of the quantized network.
        layers: layers by name.
        solver: solves one layer.
        needs_rows: whether the solver reads single rows; else only their means.
        row_weights: layer -> number of a batch -> weight of each row.
        batches: number of batches of all ranks.
        ranks: share the batches (batch i is on rank i modulo their number) and layers.
        residuals: layer -> number of the tensor that its result is added to.
        constants: attribute of the module -> new value.
        float_constants: those of `constants` that have no codes in the file.
    """

    plan: QuantPlan
    executor: Executor
    layers: dict[str, Layer]
    solver: Solver
    needs_rows: bool
    row_weights: Mapping[str, Mapping[int, torch.Tensor]]
    batches: int
    ranks: Ranks
    residuals: Mapping[str, int]
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    float_constants: dict[str, torch.Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rounded: int = 0
    corrected: int = 0

    def visit(
        self, names: Sequence[str], values: Sequence[Sequence[Values]]
    ) -> Mapping[str, torch.Tensor]:
        """Solve layers; return the values behind their points."""
        solve = self._solve_shared if self.ranks.is_distributed else self._solve_alone
        updates: dict[str, torch.Tensor] = {}
        for name, solution in solve(names, values):
            updates |= self._store(name, solution)
        return {name: t.to(self.executor.device) for name, t in updates.items()}

    def _solve_alone(
        self, names: Sequence[str], values: Sequence[Sequence[Values]]
    ) -> Iterator[tuple[str, LayerSolution]]:
        """Solve each layer before taking the samples of the next: one layer's are in memory."""
        for name in names:
            samples = LayerSamples(self.layers[name].node, self._slices(name, values))
            yield name, self.solver(self.plan, self.layers[name], samples)

    def _solve_shared(
        self, names: Sequence[str], values: Sequence[Sequence[Values]]
    ) -> Iterator[tuple[str, LayerSolution]]:
        """Solve the layers on several ranks.

        Samples are exchanged first, so that no rank waits for the solution of another.
        """
        ranks, samples = self.ranks, dict[str, LayerSamples]()
        costs = [_cost(self.layers[name]) for name in names]
        owners = dict(zip(names, balance(costs, ranks.size), strict=True))
        for name, owner in owners.items():
            shares = ranks.gather(slices_to_bytes(self._slices(name, values)), owner)
            if owner == ranks.rank:
                slices = interleave([slices_from_bytes(data) for data in shares])
                samples[name] = LayerSamples(self.layers[name].node, slices)
        own = {
            name: self.solver(self.plan, self.layers[name], each).to_bytes()
            for name, each in samples.items()
        }
        for name, owner in owners.items():
            yield name, LayerSolution.from_bytes(ranks.broadcast(own.get(name), owner))

    def _slices(self, name: str, values: Sequence[Sequence[Values]]) -> list[BatchSlice]:
        """Return the samples of a layer in this rank's batches."""
        layer, slices = self.layers[name], list[BatchSlice]()
        source = self.executor.calls[self.executor.indices[name]].operands[0][1]
        targets, limits = self._targets(name, values), self._row_limits(layer)
        ids = self._ids(name, values)
        for k, row in enumerate(values[1]):
            i = k * self.ranks.size + self.ranks.rank
            weights = self.row_weights[name][i] if name in self.row_weights else None
            slices.append(
                slice_batch(
                    layer.node, row[source], targets[k], weights, limits[is_holdout(i)], ids[k]
                )
            )
        return slices

    def _targets(self, name: str, values: Sequence[Sequence[Values]]) -> list[torch.Tensor]:
        """Return the float results of a layer, plus the error of the tensor they are added to."""
        float_values, quantized_values = values
        number, residual = self.executor.indices[name], self.residuals.get(name)
        if residual is None:
            return [row[number] for row in float_values]
        pairs = zip(float_values, quantized_values, strict=True)
        return [residual_target(a[number], a[residual], b[residual]) for a, b in pairs]

    def _ids(self, name: str, values: Sequence[Sequence[Values]]) -> Sequence[torch.Tensor | None]:
        """Return the expert of each row; None for a layer without experts, and -1 where the float
        network has chosen another, whose result is no target."""
        operands = dict(self.executor.calls[self.executor.indices[name]].operands)
        if not is_of_experts(self.layers[name].node):
            return [None] * len(values[0])
        pairs = (
            (exact[operands[2]], coded[operands[2]]) for exact, coded in zip(*values, strict=True)
        )
        return [torch.where(exact == coded, coded, -1) for exact, coded in pairs]

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

    def _store(self, name: str, solution: LayerSolution) -> dict[str, torch.Tensor]:
        layer, updates = self.layers[name], dict[str, torch.Tensor]()
        self.notes += [solution.note] if solution.note else []
        if solution.weight is not None:
            self.constants[layer.attribute(1)] = solution.weight
            self.rounded += 1
            updates[f"{name}.weight"] = solution.weight
        if solution.bias is None:
            return updates
        self.corrected += 1
        attribute = layer.attribute(2)
        if layer.bias_params is not None:
            bias = layer.stored_bias(solution.bias)
            self.constants[attribute] = bias
            return {**updates, f"{name}.bias": bias}
        self.constants[attribute] = self.float_constants[attribute] = solution.bias
        return {**updates, G.name_of(layer.constant(2)): solution.bias}


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
    left, ranks = nodes_by_rows(state.graph), ranks_for(state, step)  # rows of both differ there
    layers = {name: each for name, each in exclusive_layers(state).items() if name not in left}
    own = range(ranks.rank, len(samples), ranks.size)
    nodes = [layer.node for layer in layers.values()]
    weights = token_weights(state.graph, samples, nodes, own)
    residuals = _residuals(executor, layers.keys())
    walk = LayerWalk(
        state.plan, executor, layers, solver, needs_rows, weights, len(samples), ranks, residuals
    )
    stops = {name: [residuals[name]] if name in residuals else [] for name in layers}
    run_by_levels(executor, samples[ranks.rank :: ranks.size], stops, walk.visit)
    if walk.notes and fit < min(kept.n_train, 2 * HOLDOUT_EVERY):
        walk.notes.append(f"{step}: memory limits it to {fit} of {kept.n_train} samples")
    changed = walk.rounded if needs_rows else walk.corrected
    change = Change(step, changed, reason, walk.float_constants)
    return with_constants(state, walk.constants).with_notes(*walk.notes).with_change(change)


def replay_constants(state: ConversionState, change: Change) -> ConversionState:
    """Restore the constants that are float; the others are read from the codes of the file."""
    return with_constants(state, change.arrays).with_change(change)


def _cost(layer: Layer) -> float:
    """Estimate the cost of solving a layer: the Hessian of its rows, and error feedback."""
    groups, outputs, inputs = layer.matrix.shape
    rows = max(MIN_ROWS, ROWS * min(inputs, COLUMNS))
    return float(groups * inputs * (rows * (inputs + 2 * outputs) + inputs * (inputs + outputs)))


def _residuals(executor: Executor, layers: Set[str]) -> dict[str, int]:
    """Return the tensor that each layer's result is added to, where it is computed before."""
    order = execution_order(executor.reads, {executor.indices[name] for name in layers})
    place = {number: k for k, number in enumerate(order)}
    added = {name: residual_input(executor, executor.indices[name]) for name in layers}
    return {
        name: other
        for name, other in added.items()
        if other is not None and place.get(other, -1) < place[executor.indices[name]]
    }


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
