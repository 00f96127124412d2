"""How far a quantized network's outputs are from the float one's, on samples that decide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool.conversion import Conversion
from qtool.data import Batch
from qtool.graph.run import Executor
from qtool.points import insert_points, points_of

__all__ = ["coded", "loss_of", "noise_of", "outputs"]

FAINTEST = 1e-30  # the power of an output that is zero throughout


def outputs(module: nn.Module, batch: Batch) -> list[torch.Tensor]:
    """The float tensors that a module gives."""
    found = pytree.tree_leaves(module(*batch.args, **batch.kwargs))
    return [t for t in found if isinstance(t, torch.Tensor) and t.is_floating_point()]


def loss_of(exact: Iterable[torch.Tensor], coded: Iterable[torch.Tensor]) -> torch.Tensor:
    """The power of the difference over that of the float outputs, added up over outputs."""
    pairs = list(zip(exact, coded, strict=True))
    return torch.stack(
        [(one - two).square().sum() / one.square().sum().clamp(min=FAINTEST) for one, two in pairs]
    ).sum()


def coded(work: Conversion) -> fx.GraphModule:
    """The quantized network, as the conversion has it by now."""
    assert work.parameters is not None
    module = insert_points(work.graph.module, work.plan)
    for name, point in points_of(module).items():
        point.set_params(work.parameters.params[name])
    return module


def noise_of(
    work: Conversion, modules: Sequence[fx.GraphModule], batches: Sequence[Batch]
) -> list[float]:
    """Of each quantized network, the noise of its outputs over their power in the float one."""
    found = []
    with torch.inference_mode():
        wanted = [outputs(work.captured.graph.module, batch) for batch in batches]
        for module in modules:
            run, total = Executor(replace(work.graph, module=module)), _Total()
            for batch, exact in zip(batches, wanted, strict=True):
                results = run.results(batch, run.points)
                total.add(exact, [t for t in results if t.is_floating_point()])
            found.append(total.ratio)
    return found


class _Total:
    """Sums over batches, output by output."""

    def __init__(self) -> None:
        self._noise: list[float] = []
        self._power: list[float] = []

    def add(self, exact: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> None:
        noise = [_power(one.double() - two) for one, two in zip(exact, found, strict=True)]
        power = [_power(one.double()) for one in exact]
        self._noise = _added(self._noise, noise)
        self._power = _added(self._power, power)

    @property
    def ratio(self) -> float:
        pairs = zip(self._noise, self._power, strict=True)
        return sum(noise / max(power, FAINTEST) for noise, power in pairs)


def _added(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(one, other, strict=True)] if one else list(other)


def _power(t: torch.Tensor) -> float:
    return float(t.square().sum())
