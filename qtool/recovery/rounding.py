"""The step `round`: weights rounded for what their layer computes, not each to its nearest code.

Layer by layer in order, on kept samples: what the layer reads in the quantized network, where all
layers before it are rounded already, and what is wanted of it, which is what it gives in the float
network. Where its result is added to another tensor, that sum is wanted to be the float network's:
so the layer repairs the error of the other one, too, and a residual network goes on to damp the
errors in its stream, which layers that were each held to their own float result would not. The
weights move towards what is wanted, as far as samples kept aside say, and are rounded with error
feedback (gptq.py); they are taken if the results are nearer then, on those samples. The mean of
what is still missing goes into the bias. Tokens count by what they do to the outputs
(row_gains.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from qtool import graph as G
from qtool.conversion import Conversion, Step
from qtool.data import Batch
from qtool.graph.run import Executor, Values
from qtool.recovery.gptq import Grid, inverse_of, moments_of, round_columns, towards
from qtool.recovery.judging import as_near, coded
from qtool.recovery.layer_rows import (
    as_matrix,
    as_weight,
    gains_of,
    mean_along,
    mean_of,
    results_of,
    rows_of,
)
from qtool.recovery.left_out import left_out_where_it_fails
from qtool.recovery.owned import (
    attribute_of,
    constant_of,
    owned_layers,
    params_of,
    source_of,
    with_constants,
)
from qtool.recovery.residual import added_to
from qtool.recovery.row_gains import row_gains
from qtool.targets import target
from qtool.types import Change, QuantParams

__all__ = ["BIAS", "ROUND"]

REASON = "weights are rounded for the results of their layers, on samples of the calibration"
MEANS = "biases take on what rounding does to the means of their layers' results"

NO_SAMPLES = "left out, since the calibration kept no samples; calibrate with this step chosen"
TOO_FEW = "left out, since the calibration kept too few samples for it ({})"
SAMPLES = 128
FEWEST_SAMPLES = 8
ELEMENTS = 1 << 27  # of all values that are held at once, in both networks; fewer samples then
BATCH = 64
KEPT_ASIDE = 4  # every so many batches are for judging alone
COLUMNS = 1024  # that are rounded with feedback to each other
ROWS = 24  # for each of them, in all
FEWEST = 2048
SATURATES = "round: biases alone, since sums of this target could saturate with other codes"
FURTHER = "left out, since it took outputs on samples kept aside further from the float model"

aten = torch.ops.aten


@dataclass
class _Work:
    """One walk through the network, and what it found."""

    conversion: Conversion
    executor: Executor
    layers: dict[str, fx.Node]
    reads: dict[str, int]  # layer -> the number of the node that it reads in the executor
    weights: bool
    gains: Mapping[str, Sequence[torch.Tensor]]  # layer -> how much its rows count
    found: dict[str, torch.Tensor] = field(default_factory=dict)  # attribute -> its new value
    floats: dict[str, torch.Tensor] = field(default_factory=dict)  # of them, what has no codes
    notes: list[str] = field(default_factory=list)
    rounded: int = 0
    shifted: int = 0

    def visit(self, name: str, values: Sequence[Sequence[Values]]) -> Mapping[str, torch.Tensor]:
        node, at = self.layers[name], self.reads[name]
        inputs, wanted = [row[at] for row in values[1]], _wanted(self, name, values)
        seen = _Seen(node, inputs, wanted, self.gains.get(name))
        weight = _round(self, node, seen) if self.weights else None
        made = {}
        if weight is not None:
            self.found[attribute_of(node, 1)] = weight
            self.rounded += 1
            made[f"{name}.weight"] = weight
        bias = _shifted(self, node, seen, weight)
        if bias is None:
            return made
        self.shifted += 1
        point, attribute = f"{name}.bias", attribute_of(node, 2)
        if point in self.conversion.plan:
            self.found[attribute] = params_of(self.conversion, point).round_trip(bias)
            return {**made, point: self.found[attribute]}
        self.found[attribute] = self.floats[attribute] = bias
        return {**made, G.name_of(source_of(node, 2)): bias}


@dataclass(frozen=True, eq=False)
class _Seen:
    """What a layer reads in the quantized network, what is wanted of it, and how much each row
    counts (None: all the same), batch by batch."""

    node: fx.Node
    inputs: Sequence[torch.Tensor]
    wanted: Sequence[torch.Tensor]
    gains: Sequence[torch.Tensor] | None

    def rows(self, aside: bool, most: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Rows of both less their means, times the root of what they count, of batches that are
        kept aside or of the others; None of too few."""
        chosen = [i for i in range(len(self.inputs)) if (i % KEPT_ASIDE == KEPT_ASIDE - 1) == aside]
        each = max(1, most // max(1, len(chosen)))
        if not chosen:
            return None
        x = torch.cat([rows_of(self.node, self.inputs[i], each) for i in chosen], 1)
        y = torch.cat([results_of(self.node, self.wanted[i], each) for i in chosen], 1)
        if x.shape[1] < 2:
            return None
        if self.gains is None:
            return x.sub_(x.mean(1, keepdim=True)), y.sub_(y.mean(1, keepdim=True))
        counts = torch.cat([gains_of(self.gains[i], each) for i in chosen])
        share = (counts / counts.sum().clamp(min=1e-30))[:, None]
        root = (share * len(share)).sqrt()
        return root * (x - (share * x).sum(1, keepdim=True)), root * (
            y - (share * y).sum(1, keepdim=True)
        )


def _wanted(work: _Work, name: str, values: Sequence[Sequence[Values]]) -> list[torch.Tensor]:
    """The layer's float result, and what is missing of the tensor that it will be added to."""
    run, (exact, coded) = work.executor, values
    at, beside = run.numbers[name], added_to(run, run.numbers[name])
    results = [row[at] for row in exact]
    if beside is None or any(row[beside] is None for row in (*exact, *coded)):
        return results
    others = [(one[beside], two[beside]) for one, two in zip(exact, coded, strict=True)]
    if any(r.numel() != other.numel() for r, (other, _) in zip(results, others, strict=True)):
        return results
    return [r + (one - two).reshape(r.shape) for r, (one, two) in zip(results, others, strict=True)]


def _round(work: _Work, node: fx.Node, seen: _Seen) -> torch.Tensor | None:
    """The weights of one layer, rounded; None where the nearest codes are better."""
    name, weight = f"{G.name_of(node)}.weight", constant_of(work.conversion, node, 1)
    params = params_of(work.conversion, name)
    exact = as_matrix(node, weight)
    most = max(FEWEST, ROWS * min(exact.shape[-1], COLUMNS))
    learned, aside = seen.rows(aside=False, most=most), seen.rows(aside=True, most=most // 2)
    if learned is None or aside is None:
        work.notes.append(f"{name}: rounded to nearest, since the samples are too few")
        return None
    try:
        found = _solved(node, exact, learned, aside, params, weight.shape)
    except RuntimeError:  # torch.linalg.LinAlgError: not positive definite
        work.notes.append(f"{name}: rounded to nearest, since its inputs are too much alike")
        return None
    nearest = as_matrix(node, params.round_trip(weight))
    if not _error(found, *aside) < _error(nearest, *aside):
        return None
    return as_weight(node, found, weight.shape)


def _solved(
    node: fx.Node,
    exact: torch.Tensor,
    learned: tuple[torch.Tensor, torch.Tensor],
    aside: tuple[torch.Tensor, torch.Tensor],
    params: QuantParams,
    shape: torch.Size,
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
        grid = Grid(scale[:, :, part], zero[:, :, part], *levels)
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
    work: _Work, node: fx.Node, seen: _Seen, weight: torch.Tensor | None
) -> torch.Tensor | None:
    """The bias with which the mean of the layer's results is that of what is wanted, on all
    positions of all kept samples; None where it has none.

    weight: as it was rounded; None: to nearest.
    """
    if len(node.args) < 3 or not isinstance(node.args[2], fx.Node):
        return None
    point = f"{G.name_of(node)}.weight"
    given = (
        weight
        if weight is not None
        else _behind(work, point, constant_of(work.conversion, node, 1))
    )
    matrix = as_matrix(node, given).double()
    product = (matrix @ mean_of(node, seen.inputs, seen.gains)[:, :, None]).flatten()
    channel = -1 if node.target is aten.linear.default else 1
    bias = constant_of(work.conversion, node, 2)
    return (mean_along(seen.wanted, channel, seen.gains) - product).to(bias.dtype)


def _behind(work: _Work, point: str, weight: torch.Tensor) -> torch.Tensor:
    return params_of(work.conversion, point).round_trip(weight)


def _walk(conversion: Conversion, weights: bool) -> _Work:
    """A walk over all kept samples; `weights`: whether weights are rounded, or biases alone."""
    module = coded(conversion)
    executor = Executor(replace(conversion.graph, module=module))
    reads = {
        G.name_of(n): executor.numbers[G.name_of(n.args[0])]
        for n in G.calls(module.graph)
        if n.args and isinstance(n.args[0], fx.Node)
    }
    layers, samples = owned_layers(conversion), _samples(conversion, executor)
    gains = row_gains(conversion.graph, samples, layers.values())
    work = _Work(conversion, executor, layers, reads, weights, gains)
    networks = [frozenset[str](), executor.points]
    executor.lockstep(samples, networks, set(work.layers), work.visit)
    return work


def _samples(conversion: Conversion, executor: Executor) -> list[Batch]:
    """As many of the kept samples as can be held, in both networks."""
    fit = max(ELEMENTS // max(1, 2 * executor.held()), 1)
    assert conversion.calibration is not None
    count = min(conversion.calibration.kept.learned, fit)
    return conversion.quick_batches(max(1, min(BATCH, count // KEPT_ASIDE)), fit)


def _taken(conversion: Conversion, work: _Work, change: Change) -> Conversion:
    """The conversion with the values that a walk found; the change holds those that a file does not
    hold as codes."""
    change = replace(change, arrays=work.floats)
    return with_constants(conversion, work.found).warned(*work.notes).noted(change)


def _replay(conversion: Conversion, change: Change) -> Conversion:
    """With biases that are float; weights are taken from the codes of the file."""
    return with_constants(conversion, change.arrays).noted(change)


def _lacking(conversion: Conversion) -> str | None:
    """Why there is nothing to learn from, if so."""
    if not conversion.batches(BATCH):
        return NO_SAMPLES
    assert conversion.calibration is not None
    count = len(conversion.calibration.kept)
    return TOO_FEW.format(count) if count < FEWEST_SAMPLES else None


@left_out_where_it_fails("round")
def _round_all(conversion: Conversion) -> Conversion:
    if (lack := _lacking(conversion)) is not None:
        return conversion.warned(f"round: {lack}")
    free = target(conversion.plan.target).pair_limit is None
    work = _walk(conversion, weights=free)
    if not free:
        work.notes.append(SATURATES)
    after = _taken(conversion, work, Change("round", work.rounded, REASON))
    if not as_near(conversion, after):
        return conversion.warned(f"round: {FURTHER}")
    return after


@left_out_where_it_fails("bias")
def _shift_all(conversion: Conversion) -> Conversion:
    if (lack := _lacking(conversion)) is not None:
        return conversion.warned(f"bias: {lack}")
    work = _walk(conversion, weights=False)
    return _taken(conversion, work, Change("bias", work.shifted, MEANS))


ROUND = Step("round", _round_all, accuracy="balanced", samples=SAMPLES, replay=_replay)
BIAS = Step("bias", _shift_all, accuracy="", samples=SAMPLES, replay=_replay)  # `round` has it
