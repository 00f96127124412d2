"""Watching a graph while data runs through it, one batch at a time, by forward hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qtool import observers
from qtool.calibration.file import Calibration
from qtool.data import Batch, batches
from qtool.errors import DataError
from qtool.graph import FloatGraph
from qtool.observers import Statistic
from qtool.plan import QuantPlan
from qtool.points import points_of
from qtool.types import Observed, Progress

__all__ = ["observe", "observing"]


@contextmanager
def observing(prepared: nn.Module, plan: QuantPlan) -> Iterator[dict[str, Statistic]]:
    """Watches the observed points of a prepared graph while the context is open.

    Every hook is removed on the way out, also after an exception.
    """
    points = points_of(prepared)
    statistics: dict[str, Statistic] = {}
    handles = []
    try:
        for point in plan.observed():
            assert isinstance(point.spec, Observed)
            statistic = observers.create(point.spec.observer, point.spec.axis)
            statistics[point.name] = statistic
            handles.append(points[point.name].register_forward_hook(_watch(point.name, statistic)))
        yield statistics
    finally:
        for handle in handles:
            handle.remove()


def _watch(name: str, statistic: Statistic) -> Callable[[nn.Module, Any, torch.Tensor], None]:
    def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        try:
            statistic.update(output.detach())
        except DataError as error:
            raise DataError(f"tensor '{name}': {error}") from error

    return hook


def observe(
    graph: FloatGraph,
    prepared: nn.Module,
    plan: QuantPlan,
    data: Iterable[Any],
    fingerprint: str,
    progress: Progress = lambda x: x,
) -> Calibration:
    """Runs the data through a prepared graph and gathers its statistics, one batch at a time.

    Raises:
        DataError: no data; NaN or Inf; shapes or dtypes that do not fit.
    """
    samples = 0
    device = next((t.device for t in prepared.parameters()), torch.device("cpu"))
    with observing(prepared, plan) as statistics, torch.inference_mode():
        for index, batch in enumerate(progress(batches(data, graph.module))):
            bound = graph.bind(batch, index)
            bound.check_finite(index)
            samples += bound.size
            _run(prepared, bound.to(device), index)
    if not samples:
        raise DataError("the calibration data is empty; give at least one batch")
    specs = {p.name: p.spec.observer for p in plan.observed() if isinstance(p.spec, Observed)}
    return Calibration(fingerprint, plan.target, graph.inputs, samples, specs, statistics)


def _run(prepared: nn.Module, batch: Batch, index: int) -> None:
    try:
        prepared(*batch.args, **batch.kwargs)
    except DataError as error:
        raise DataError(f"batch {index}, {error}") from error
