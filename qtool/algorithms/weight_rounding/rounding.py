"""The step `round`: weights rounded for what their layer computes, not each to its nearest code.

Layer by layer in order, on kept samples: what the layer reads in the quantized network, where all
layers before it are rounded already, and what is wanted of it, which is what it gives in the float
network. Where its result is added to another tensor, that sum is wanted to be the float network's:
so the layer repairs the error of the other one, too, and a residual network goes on to damp the
errors in its stream, which layers that were each held to their own float result would not. The
weights move towards what is wanted, as far as samples kept aside say, and are rounded with error
feedback (gptq.py); they are taken if the results are nearer then, on those samples. The mean of
what is still missing goes into the bias. Tokens count by what they do to the outputs
(token_weights.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import torch
from safetensors.torch import load, save
from torch import fx

from qtool.algorithms.acceptance import not_worse, quantized_module, ranks_for
from qtool.algorithms.exclusive_layers import (
    attribute_of,
    constant_of,
    exclusive_layers,
    params_of,
    source_of,
    with_constants,
)
from qtool.algorithms.layer_rows import as_matrix, as_weight
from qtool.algorithms.pipeline import ConversionState, Step
from qtool.algorithms.residual_input import residual_input
from qtool.algorithms.skip_on_failure import NO_SAMPLES, TOO_FEW, skip_on_failure
from qtool.algorithms.weight_rounding.gptq import (
    Grid,
    PairBounds,
    inverse_of,
    moments_of,
    round_columns,
    towards,
)
from qtool.algorithms.weight_rounding.layer_samples import (
    KEPT_ASIDE,
    BatchSlice,
    LayerSamples,
    is_aside,
    part_of,
    read,
    written,
)
from qtool.algorithms.weight_rounding.pair_bounds import pair_bounds
from qtool.algorithms.weight_rounding.token_weights import token_weights
from qtool.calibration.solve_parameters import BIAS_LIMIT
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph.executor import Executor, Values
from qtool.core.types import Change, QuantParams
from qtool.distributed import Ranks, balance, interleave

REASON = "weights are rounded for the results of their layers, on samples of the calibration"
MEANS = "biases take on what rounding does to the means of their layers' results"

SAMPLES, LOW_BIT_SAMPLES = 128, 512  # more where there is more to mend
FEWEST_SAMPLES = 8
ELEMENTS = 1 << 27  # of all values that are held at once, in both networks; fewer samples then
BATCH = 64
COLUMNS = 1024  # that are rounded with feedback to each other
ROWS, LOW_BIT_ROWS = 24, 48  # for each of them, in all
FEWEST = 2048
FURTHER = "left out, since it took outputs on samples kept aside further from the float model"

aten = torch.ops.aten


@dataclass
class _Work:
    """One walk through the network, and what it found.

    batches: how many there are. ranks: that share them, batch i being of rank i modulo
    their number, and the layers of a wave.
    """

    state: ConversionState
    executor: Executor
    layers: dict[str, fx.Node]
    weights: bool
    gains: Mapping[str, Mapping[int, torch.Tensor]]  # layer -> batch -> how much its rows count
    batches: int
    ranks: Ranks
    beside: dict[str, int] = field(default_factory=dict)  # layer -> what its result is added to
    found: dict[str, torch.Tensor] = field(default_factory=dict)  # attribute -> its new value
    floats: dict[str, torch.Tensor] = field(default_factory=dict)  # of them, what has no codes
    notes: list[str] = field(default_factory=list)
    rounded: int = 0
    shifted: int = 0

    def visit(
        self, names: Sequence[str], values: Sequence[Sequence[Values]]
    ) -> Mapping[str, torch.Tensor]:
        """Solves layers, each where it was dealt to; gives what stands behind their points."""
        solve, made = (
            self._dealt if self.ranks.is_distributed else self._alone,
            dict[str, torch.Tensor](),
        )
        for name, result in solve(names, values):
            made |= self._taken(name, result)
        return made

    def _alone(
        self, names: Sequence[str], values: Sequence[Sequence[Values]]
    ) -> Iterator[tuple[str, _Solved]]:
        """Each before anything is asked of the next, so that the rows of one are held."""
        for name in names:
            yield (
                name,
                _solve(self, name, LayerSamples(self.layers[name], self._parts(name, values))),
            )

    def _dealt(
        self, names: Sequence[str], values: Sequence[Sequence[Values]]
    ) -> Iterator[tuple[str, _Solved]]:
        """All of them known first, so that no rank waits for what another one solves."""
        ranks, seen = self.ranks, dict[str, LayerSamples]()
        costs = [_cost(self.state, self.layers[name]) for name in names]
        owners = dict(zip(names, balance(costs, ranks.size), strict=True))
        for name, owner in owners.items():
            shares = ranks.gather(written(self._parts(name, values)), owner)
            if owner == ranks.rank:
                seen[name] = LayerSamples(
                    self.layers[name], interleave([read(data) for data in shares])
                )
        solved = {name: _solve(self, name, one).to_bytes() for name, one in seen.items()}
        for name, owner in owners.items():
            yield name, _Solved.of(ranks.broadcast(solved.get(name), owner))

    def _parts(self, name: str, values: Sequence[Sequence[Values]]) -> list[BatchSlice]:
        """Of the own batches."""
        node, found = self.layers[name], list[BatchSlice]()
        reads = self.executor.calls[self.executor.indices[name]].operands[0][1]
        wanted, most = _wanted(self, name, values), self._rows(node)
        for k, row in enumerate(values[1]):
            i = k * self.ranks.size + self.ranks.rank
            gains = self.gains[name][i] if name in self.gains else None
            found.append(part_of(node, row[reads], wanted[k], gains, most[is_aside(i)]))
        return found

    def _rows(self, node: fx.Node) -> tuple[int, int]:
        """How many of a batch are learned from, and of one that is kept aside judged by."""
        if not self.weights:
            return 0, 0
        inputs = as_matrix(node, constant_of(self.state, node, 1)).shape[-1]
        bits = params_of(self.state, f"{G.name_of(node)}.weight").qtype.bits
        most = max(FEWEST, (ROWS if bits >= 8 else LOW_BIT_ROWS) * min(inputs, COLUMNS))
        judging = sum(map(is_aside, range(self.batches)))
        learning = self.batches - judging
        return max(1, most // max(learning, 1)), max(1, most // 2 // max(judging, 1))

    def _taken(self, name: str, solved: _Solved) -> dict[str, torch.Tensor]:
        node, made = self.layers[name], dict[str, torch.Tensor]()
        self.notes += [solved.note] if solved.note else []
        if solved.weight is not None:
            self.found[attribute_of(node, 1)] = solved.weight
            self.rounded += 1
            made[f"{name}.weight"] = solved.weight
        if solved.bias is None:
            return made
        self.shifted += 1
        point, attribute = f"{name}.bias", attribute_of(node, 2)
        if point in self.state.plan:
            self.found[attribute] = _fitting(params_of(self.state, point), solved.bias)
            return {**made, point: self.found[attribute]}
        self.found[attribute] = self.floats[attribute] = solved.bias
        return {**made, G.name_of(source_of(node, 2)): solved.bias}


@dataclass(frozen=True, eq=False)
class _Solved:
    """Of a layer. weight: None where the nearest codes are better. bias: None where it has none.
    note: a sentence, or nothing."""

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    note: str

    def to_bytes(self) -> bytes:
        given = {"weight": self.weight, "bias": self.bias}
        tensors = {name: t.contiguous() for name, t in given.items() if t is not None}
        return save(tensors, {"note": self.note})

    @classmethod
    def of(cls, data: bytes) -> _Solved:
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        tensors = load(data)
        return cls(tensors.get("weight"), tensors.get("bias"), head["__metadata__"]["note"])


def _cost(state: ConversionState, node: fx.Node) -> float:
    """Of solving a layer, about: second moments of its rows, and feedback to all columns."""
    exact = as_matrix(node, constant_of(state, node, 1))
    outputs, inputs = exact.shape[1:]
    rows = max(FEWEST, ROWS * min(inputs, COLUMNS))
    return float(
        len(exact) * inputs * (rows * (inputs + 2 * outputs) + inputs * (inputs + outputs))
    )


def _solve(work: _Work, name: str, seen: LayerSamples) -> _Solved:
    node = work.layers[name]
    weight, note = _round(work, node, seen) if work.weights else (None, "")
    return _Solved(weight, _shifted(work, node, seen, weight), note)


def _wanted(work: _Work, name: str, values: Sequence[Sequence[Values]]) -> list[torch.Tensor]:
    """The layer's float result, and what is missing of the tensor that it will be added to."""
    exact, coded = values
    at, beside = work.executor.indices[name], work.beside.get(name)
    results = [row[at] for row in exact]
    if beside is None:
        return results
    others = [(one[beside], two[beside]) for one, two in zip(exact, coded, strict=True)]
    if any(r.numel() != other.numel() for r, (other, _) in zip(results, others, strict=True)):
        return results
    return [r + (one - two).reshape(r.shape) for r, (one, two) in zip(results, others, strict=True)]


def _round(work: _Work, node: fx.Node, seen: LayerSamples) -> tuple[torch.Tensor | None, str]:
    """The weights of one layer, rounded; None where the nearest codes are better. And a note."""
    name, weight = f"{G.name_of(node)}.weight", constant_of(work.state, node, 1)
    params = params_of(work.state, name)
    exact = as_matrix(node, weight)
    learned, aside = seen.rows(aside=False), seen.rows(aside=True)
    if learned is None or aside is None:
        return None, f"{name}: rounded to nearest, since the samples are too few"
    try:
        pairs = pair_bounds(work.state.plan, node, exact, params, weight.shape)
        found = _solved(node, exact, learned, aside, params, weight.shape, pairs)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not declare it
        return None, f"{name}: rounded to nearest, since its inputs are too much alike"
    nearest = as_matrix(node, params.round_trip(weight))
    if not _error(found, *aside) < _error(nearest, *aside):
        return None, ""
    return as_weight(node, found, weight.shape), ""


def _solved(
    node: fx.Node,
    exact: torch.Tensor,
    learned: tuple[torch.Tensor, torch.Tensor],
    aside: tuple[torch.Tensor, torch.Tensor],
    params: QuantParams,
    shape: torch.Size,
    pairs: PairBounds | None,
) -> torch.Tensor:
    """Weights on the grid for what is wanted of these rows, some columns after the others; towards
    it as far as it repairs rows kept aside, most of what is missing being noise."""
    scale, zero = (
        as_matrix(node, params.along(t, shape).expand(shape)).to(exact.dtype)
        for t in (params.scale, params.zero_point)
    )
    found = torch.empty_like(exact)
    missing, unseen = (wanted - rows @ exact.mT for rows, wanted in (learned, aside))
    for part in torch.arange(exact.shape[-1]).split(COLUMNS):
        x, other, weight = learned[0][:, :, part], aside[0][:, :, part], exact[:, :, part]
        levels = params.qtype.qmin, params.qtype.qmax
        grid = Grid(scale[:, :, part], zero[:, :, part], *levels, pairs, int(part[0]))
        inverse = inverse_of(moments_of(x))
        way = towards(weight, missing.mT @ x, inverse) - weight
        repaired = other @ way.mT
        share = (unseen * repaired).sum() / repaired.square().sum().clamp(min=1e-30)
        found[:, :, part] = round_columns(weight + share.clamp(0, 1) * way, inverse, grid)
        if int(part[-1]) + 1 < exact.shape[-1]:
            off = (found[:, :, part] - weight).mT
            missing, unseen = missing - x @ off, unseen - other @ off
    return found


def _error(weight: torch.Tensor, rows: torch.Tensor, wanted: torch.Tensor) -> float:
    """The squared error of a layer's results, without that of their means: biases can take it."""
    return float((wanted - rows @ weight.mT).square().sum())


def _shifted(
    work: _Work, node: fx.Node, seen: LayerSamples, weight: torch.Tensor | None
) -> torch.Tensor | None:
    """The bias with which the mean of the layer's results is that of what is wanted, on all
    positions of all kept samples; None where it has none, or where that is no number.

    weight: as it was rounded; None: to nearest.
    """
    if len(node.args) < 3 or not isinstance(node.args[2], fx.Node):
        return None
    point = f"{G.name_of(node)}.weight"
    given = weight if weight is not None else _behind(work, point, constant_of(work.state, node, 1))
    matrix = as_matrix(node, given).double()
    product = (matrix @ seen.mean_of_inputs()[:, :, None]).flatten()
    bias = constant_of(work.state, node, 2)
    found = (seen.mean_of_wanted() - product).to(bias.dtype)
    return found if bool(found.isfinite().all()) else None


def _fitting(params: QuantParams, bias: torch.Tensor) -> torch.Tensor:
    """A bias as its codes have it, and no further than they reach: where a layer scale makes the
    results tiny, what is missing beside them is not its to mend."""
    most = params.scale * BIAS_LIMIT
    return params.round_trip(bias.clamp(-most, most))


def _behind(work: _Work, point: str, weight: torch.Tensor) -> torch.Tensor:
    return params_of(work.state, point).round_trip(weight)


def _walk(state: ConversionState, weights: bool) -> _Work:
    """A walk over all kept samples; `weights`: whether weights are rounded, or biases alone."""
    executor = Executor(replace(state.graph, module=quantized_module(state)))
    layers, samples = exclusive_layers(state), _samples(state, executor)
    ranks = ranks_for(state, "round" if weights else "bias")
    own = samples[ranks.rank :: ranks.size]
    asked = range(ranks.rank, len(samples), ranks.size)
    gains = token_weights(state.graph, samples, layers.values(), asked)
    work = _Work(state, executor, layers, weights, gains, len(samples), ranks)
    work.beside |= _beside(executor, layers.keys())
    networks = [frozenset[str](), executor.points]
    stops = {name: [work.beside[name]] if name in work.beside else [] for name in layers}
    executor.run_side_by_side(own, networks, stops, work.visit)
    return work


def _beside(run: Executor, layers: Set[str]) -> dict[str, int]:
    """Layer -> the number of the tensor that its result is added to, where that is known then."""
    place = {number: k for k, number in enumerate(run.execution_order(layers))}
    found = {name: residual_input(run, run.indices[name]) for name in layers}
    return {
        name: other
        for name, other in found.items()
        if other is not None and place.get(other, -1) < place[run.indices[name]]
    }


def _samples(state: ConversionState, executor: Executor) -> list[Batch]:
    """As many of the kept samples as can be held, in both networks."""
    fit = max(ELEMENTS // max(1, 2 * executor.live_elements()), 1)
    assert state.calibration is not None
    count = min(state.calibration.kept.n_train, fit)
    return state.quick_batches(max(1, min(BATCH, count // KEPT_ASIDE)), fit)


def _taken(state: ConversionState, work: _Work, change: Change) -> ConversionState:
    """The conversion with the values that a walk found; the change holds those that a file does not
    hold as codes."""
    change = replace(change, arrays=work.floats)
    return with_constants(state, work.found).with_notes(*work.notes).with_change(change)


def _replay(state: ConversionState, change: Change) -> ConversionState:
    """With biases that are float; weights are taken from the codes of the file."""
    return with_constants(state, change.arrays).with_change(change)


def _lacking(state: ConversionState) -> str | None:
    """Why there is nothing to learn from, if so."""
    if not state.batches(BATCH):
        return NO_SAMPLES
    assert state.calibration is not None
    count = len(state.calibration.kept)
    return TOO_FEW.format(count) if count < FEWEST_SAMPLES else None


@skip_on_failure("round")
def _round_all(state: ConversionState) -> ConversionState:
    if (lack := _lacking(state)) is not None:
        return state.with_notes(f"round: {lack}")
    work = _walk(state, weights=True)
    after = _taken(state, work, Change("round", work.rounded, REASON))
    if not not_worse(state, after):
        return state.with_notes(f"round: {FURTHER}")
    return after


@skip_on_failure("bias")
def _shift_all(state: ConversionState) -> ConversionState:
    if (lack := _lacking(state)) is not None:
        return state.with_notes(f"bias: {lack}")
    work = _walk(state, weights=False)
    return _taken(state, work, Change("bias", work.shifted, MEANS))


GPTQ = Step(
    *("round", _round_all),
    accuracy="balanced",
    samples=SAMPLES,
    replay=_replay,
    low_bits=LOW_BIT_SAMPLES,
)
BIAS_CORRECTION = Step(
    "bias", _shift_all, accuracy="", samples=SAMPLES, replay=_replay
)  # `round` has it
