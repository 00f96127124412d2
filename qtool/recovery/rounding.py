"""The step `round`: weights rounded for what their layer computes, not each to its nearest code.

Layer by layer in order, on kept samples: what the layer reads in the float network and in the
quantized one, where all layers before it are rounded already; two candidates besides the nearest
codes (gptq.py), of which the one is taken whose results are nearest to the float layer's on samples
that it was not made from. The mean of what is still missing goes into the bias.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from qtool import graph as G
from qtool.conversion import Conversion, Step
from qtool.graph import torch_ops
from qtool.graph.run import Executor, Values
from qtool.plan import Kind
from qtool.points import insert_points, points_of
from qtool.recovery.gptq import round_columns, towards
from qtool.recovery.layer_rows import as_matrix, as_weight, is_product, rows_of
from qtool.types import Change, QuantParams

__all__ = ["BIAS", "ROUND"]

REASON = "weights are rounded for the results of their layers, on samples of the calibration"
MEANS = "biases take on what rounding does to the means of their layers' results"

NO_SAMPLES = "left out, since the calibration kept no samples; calibrate with this step chosen"
SAMPLES = 256
BATCH = 16
KEPT_ASIDE = 4  # every so many batches are for judging alone
ROWS = 8  # for each input of a position, in all
FEWEST = 4096


@dataclass
class _Work:
    """One walk through the network, and what it found."""

    conversion: Conversion
    executor: Executor
    layers: dict[str, fx.Node]
    reads: dict[str, int]  # layer -> the number of the node that it reads in the executor
    weights: bool
    found: dict[str, torch.Tensor] = field(default_factory=dict)  # attribute -> its new value
    notes: list[str] = field(default_factory=list)
    rounded: int = 0
    shifted: int = 0

    def visit(self, name: str, values: Sequence[Sequence[Values]]) -> Mapping[str, torch.Tensor]:
        node = self.layers.get(name)
        if node is None:
            return {}
        at = self.reads[name]
        seen = _Seen(*([row[at] for row in network] for network in values))
        weight = _round(self, node, seen) if self.weights else None
        if weight is not None:
            self.found[_attribute(node, 1)] = weight
            self.rounded += 1
        made = {} if weight is None else {f"{name}.weight": weight}
        bias = _shifted(self, node, values, weight)
        if bias is None:
            return made
        self.found[_attribute(node, 2)] = bias
        self.shifted += 1
        point = f"{name}.bias"
        if point in self.conversion.plan:
            return {**made, point: _params(self.conversion, point).round_trip(bias)}
        return {**made, G.name_of(_node(node, 2)): bias}


@dataclass(frozen=True, eq=False)
class _Seen:
    """What a layer reads, batch by batch, in the float network and in the quantized one."""

    exact: Sequence[torch.Tensor]
    coded: Sequence[torch.Tensor]

    def rows(self, node: fx.Node, aside: bool, most: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """Rows of both, for each of the batches that are kept aside, or of the others."""
        chosen = [i for i in range(len(self.exact)) if (i % KEPT_ASIDE == KEPT_ASIDE - 1) == aside]
        each = max(1, most // max(1, len(chosen)))
        for i in chosen:
            yield tuple(rows_of(node, x[i], each) for x in (self.exact, self.coded))


def _round(work: _Work, node: fx.Node, seen: _Seen) -> torch.Tensor | None:
    """The best of the candidates for the weights of one layer; None where that is the nearest."""
    name, weight = f"{G.name_of(node)}.weight", _constant(work, node, 1)
    params = _params(work.conversion, name)
    exact = as_matrix(node, weight.double())
    nearest = as_matrix(node, params.round_trip(weight).double())
    moments = _moments(node, seen, exact.shape[-1])
    aside = list(seen.rows(node, aside=True, most=_rows(exact.shape[-1]) // 2))
    if moments is None or not aside:
        work.notes.append(f"{name}: rounded to nearest, since the samples are too few")
        return None
    try:
        made = list(_candidates(node, exact, weight, params, *moments))
    except RuntimeError:  # torch.linalg.LinAlgError: not positive definite
        work.notes.append(f"{name}: rounded to nearest, since its inputs are too much alike")
        return None
    before = _error(exact, nearest, aside)
    errors = [_error(exact, candidate, aside) for candidate in made]
    best = min(range(len(made)), key=errors.__getitem__)
    if not errors[best] < before:
        return None
    return as_weight(made[best], weight.shape).to(weight.dtype)


def _moments(node: fx.Node, seen: _Seen, size: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Sums of xq xq^T and x xq^T without the means, [groups, size, size]; None of too few rows."""
    rows = list(seen.rows(node, aside=False, most=_rows(size)))
    if not rows or sum(r[0].shape[1] for r in rows) < 2:
        return None
    exact, coded = (torch.cat([r[i] for r in rows], 1) for i in (0, 1))
    exact, coded = exact - exact.mean(1, keepdim=True), coded - coded.mean(1, keepdim=True)
    return (coded.mT @ coded).double(), (exact.mT @ coded).double()


def _rows(size: int) -> int:
    return max(FEWEST, ROWS * size)


def _candidates(
    node: fx.Node,
    exact: torch.Tensor,
    weight: torch.Tensor,
    params: QuantParams,
    coded: torch.Tensor,
    cross: torch.Tensor,
) -> Iterator[torch.Tensor]:
    spread = [
        as_matrix(node, params.along(t, weight.shape).expand(weight.shape)).double()
        for t in (params.scale, params.zero_point)
    ]

    def rounded(values: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        scale, zero = (t[:, :, columns] for t in spread)
        codes = (torch.round(values / scale) + zero).clamp(params.qtype.qmin, params.qtype.qmax)
        return (codes - zero) * scale

    yield round_columns(exact, coded, rounded)
    yield round_columns(towards(exact, coded, cross), coded, rounded)


def _error(
    exact: torch.Tensor, candidate: torch.Tensor, rows: Sequence[tuple[torch.Tensor, ...]]
) -> float:
    """The squared error of a layer's results, without that of their means: biases can take it."""
    one, other = exact.float().mT, candidate.float().mT
    off = torch.cat([x @ one - xq @ other for x, xq in rows], 1)
    return float((off - off.mean(1, keepdim=True)).square().sum())


def _shifted(
    work: _Work,
    node: fx.Node,
    values: Sequence[Sequence[Values]],
    weight: torch.Tensor | None,
) -> torch.Tensor | None:
    """The bias with the mean difference of the layer's results added, on all kept samples.

    weight: as it was rounded; None: as the executor has it.
    """
    if len(node.args) < 3 or not isinstance(node.args[2], fx.Node):
        return None
    name, run = G.name_of(node), work.executor
    given = {} if weight is None else {f"{name}.weight.quant": weight}
    channels = 1 if node.target is torch_ops.conv else G.rank(node) - 1
    total, count = torch.zeros((), dtype=torch.float64), 0
    for exact, coded in zip(*values, strict=True):
        off = exact[run.numbers[name]].double() - run.compute(name, coded, run.points, given)
        lines = off.movedim(channels, 0).flatten(1)
        total, count = total + lines.sum(1), count + lines.shape[1]
    bias = _constant(work, node, 2)
    return (bias.double() + total / count).to(bias.dtype)


def _node(node: fx.Node, at: int) -> fx.Node:
    constant = node.args[at]
    assert isinstance(constant, fx.Node)
    return constant


def _attribute(node: fx.Node, at: int) -> str:
    return str(_node(node, at).target)


def _constant(work: _Work, node: fx.Node, at: int) -> torch.Tensor:
    return G.tensor(work.conversion.graph.module, _node(node, at)).detach().cpu()


def _params(conversion: Conversion, point: str) -> QuantParams:
    assert conversion.parameters is not None
    return conversion.parameters.params[point]


def _layers(conversion: Conversion) -> dict[str, fx.Node]:
    """Layers whose weights are in codes and belong to them alone, by name."""
    graph = conversion.graph.graph
    uses = Counter(str(n.target) for n in graph.nodes if n.op == "get_attr" for _ in n.users)
    points = {p.edges[0].user for p in conversion.plan if p.kind is Kind.WEIGHT and p.edges}
    return {
        G.name_of(node): node
        for node in G.calls(graph)
        if is_product(node)
        and G.name_of(node) in points
        and all(
            uses[_attribute(node, at)] == 1
            for at in (1, 2)
            if at < len(node.args) and isinstance(node.args[at], fx.Node)
        )
    }


def _walk(conversion: Conversion, weights: bool) -> _Work:
    """A walk over all kept samples; `weights`: whether weights are rounded, or biases alone."""
    module = insert_points(conversion.graph.module, conversion.plan)
    for name, point in points_of(module).items():
        point.set_params(_params(conversion, name))
    executor = Executor(replace(conversion.graph, module=module))
    reads = {
        G.name_of(n): executor.numbers[G.name_of(n.args[0])]
        for n in G.calls(module.graph)
        if n.args and isinstance(n.args[0], fx.Node)
    }
    work = _Work(conversion, executor, _layers(conversion), reads, weights)
    executor.lockstep(conversion.batches(BATCH), [frozenset(), executor.points], work.visit)
    return work


def _taken(conversion: Conversion, work: _Work, change: Change) -> Conversion:
    """The conversion with the values that a walk found."""
    module = G.clone(conversion.graph.module)
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and str(node.target) in work.found:
            G.set_tensor(module, node, work.found[str(node.target)])
    graph = replace(conversion.graph, module=module)
    return replace(conversion, graph=graph).warned(*work.notes).noted(change)


def _round_all(conversion: Conversion) -> Conversion:
    if not conversion.batches(BATCH):
        return conversion.warned(f"round: {NO_SAMPLES}")
    work = _walk(conversion, weights=True)
    return _taken(conversion, work, Change("round", work.rounded, REASON))


def _shift_all(conversion: Conversion) -> Conversion:
    if not conversion.batches(BATCH):
        return conversion.warned(f"bias: {NO_SAMPLES}")
    work = _walk(conversion, weights=False)
    return _taken(conversion, work, Change("bias", work.shifted, MEANS))


ROUND = Step("round", _round_all, accuracy="balanced", samples=SAMPLES)
BIAS = Step("bias", _shift_all, accuracy="", samples=SAMPLES)  # `round` does that, too
