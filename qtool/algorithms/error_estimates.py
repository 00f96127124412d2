"""Estimates of the errors that quantized tensors make alone, of all of them at once.

The error of a value by the rounding e of a tensor is J e in first order, J its derivative. For a
vector v of random signs the mean of (v . J e)^2 is |J e|^2, and one backward pass gives J^T v of
all tensors. A few vectors say which tensors make large errors; how large, runs say
(`errors_alone`), which take one pass a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from qtool.algorithms.comparable_pairs import comparable_pairs, signal
from qtool.algorithms.error_sources import ErrorSource
from qtool.core.data import Batch
from qtool.core.graph.executor import Executor
from qtool.core.output_evidence import Evidence

PROBES = 8
_WITHOUT = ("NotImplemented", "Round", "Floor", "Ceil", "Trunc", "Sign")
"""Beginnings and ends of what torch calls derivatives that do not exist, or are zero."""


def estimated_errors(
    run: Executor,
    compared: Mapping[str, Evidence],
    batches: Sequence[Batch],
    sources: Sequence[ErrorSource],
) -> list[float] | None:
    """Return the relative squared error of the outputs that each source makes alone, about.

    Infinite where an operator without a derivative is behind a source. None where that is so of
    all, or where values are not compared one by one: selected rows, scores of a detector.

    Args:
        run: executor of the quantized network.
        compared: the nodes that it is compared by.
        batches: samples, as the graph takes them.
        sources: the quantized tensors.
    """
    indices = [run.indices[name] for name in compared]
    runs = [run.run_with_gradients(batch) for batch in batches]
    real = [[values[i].detach() for i in indices] for values in runs]
    if not all(_by_value(each, list(compared.values())) for each in real):
        return None
    scales = [signal(column) ** -0.5 for column in zip(*real, strict=True)]
    of_point = {call.point: i for i, call in run.calls.items() if call.point is not None}
    places = [_first_of(run, {of_point[p] for p in s.points}) for s in sources]
    wanted = sorted({i for each in places for i in each})
    generator, totals = torch.Generator().manual_seed(0), [0.0] * len(sources)
    for values, batch in zip(runs, batches, strict=True):
        known = set(wanted) - _undifferentiable(run, values, indices)
        errors = {i: run.rounding_error(i, values) for i in known}
        pairs = [(values[i], s) for i, s in zip(indices, scales, strict=True)]
        outputs = [(x, s) for x, s in pairs if x.requires_grad]
        if not errors or not outputs:
            return None
        for _ in range(PROBES):
            signs = [torch.randint(0, 2, x.shape, generator=generator) * 2 - 1 for x, _ in outputs]
            gradients = torch.autograd.grad(
                [x for x, _ in outputs],
                [values[i] for i in errors],
                [s * sign.to(x) for (x, s), sign in zip(outputs, signs, strict=True)],
                retain_graph=True,
                allow_unused=True,
            )
            products = {
                i: _products(g, e, 0 if i in run.quantized_constants else batch.size)
                for (i, e), g in zip(errors.items(), gradients, strict=True)
            }
            for k, each in enumerate(places):
                totals[k] += _square([products.get(i) for i in each]) / PROBES
    return totals


def _by_value(real: Sequence[torch.Tensor], evidence: Sequence[Evidence]) -> bool:
    if any(each.rows for each in evidence):
        return False
    return not any(bool(a.any()) for a, _ in comparable_pairs(real, real, evidence)[len(real) :])


def _first_of(run: Executor, points: set[int]) -> set[int]:
    """Return the points that no other one is in front of: what is only moved is rounded once."""
    behind: set[int] = set()
    for i in range(min(points), max(points) + 1) if len(points) > 1 else ():
        if i in points or i in behind:
            behind.update(run.calls[i].users)
    return points - behind


def _undifferentiable(run: Executor, values: Sequence[Any], compared: Sequence[int]) -> set[int]:
    """Return the nodes from which an operator without a derivative leads to a compared value."""
    leading, stopped = set(compared), set[int]()
    for i, call in reversed(run.calls.items()):
        if i not in leading:
            continue
        leading.update(call.reads)
        differs = any(getattr(values[j], "requires_grad", False) for j in call.reads)
        if i in stopped or (differs and _stops(values[i])):
            stopped.update(call.reads)
    return stopped


def _stops(result: Any) -> bool:
    first = result[0] if isinstance(result, list | tuple) and result else result
    if not isinstance(first, torch.Tensor):
        return False
    name = type(first.grad_fn).__name__
    return first.grad_fn is None or name.startswith(_WITHOUT) or name.endswith(_WITHOUT)


def _products(gradient: torch.Tensor | None, error: torch.Tensor, samples: int) -> torch.Tensor:
    """Return the products with the gradient, [samples] where the samples are the first axis."""
    if gradient is None:
        return torch.zeros(1)
    product = gradient * error
    return product.flatten(1).sum(1) if error.shape[:1] == (samples,) else product.sum()[None]


def _square(products: Sequence[torch.Tensor | None]) -> float:
    known = [p for p in products if p is not None]
    if len(known) < len(products):
        return math.inf
    alike = len({len(p) for p in known}) == 1
    total = torch.stack([p if alike else p.sum() for p in known]).sum(0).square().sum()
    return float(total) if total.isfinite() else math.inf
