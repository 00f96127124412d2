"""Sensitivity of the outputs to errors of activations and weights, and channel extremes.

Takes one forward and one backward run. Each output is multiplied by a random sign: the square of
the gradient of their sum is then, on average, the sum of the squared derivatives of all outputs (as
in Hutchinson's estimate of a trace). An independent error of variance v in an element adds v times
that to the noise of the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core import graph as G

ELEMENTS_PER_CHANNEL = 4096  # of one batch; enough for a gain
MAX_WEIGHT_ELEMENTS = 1 << 22  # of a layer; larger weights are sampled
LINE = 1 << 12  # elements that are reduced as one line of memory, at most

Reduction = Callable[..., torch.Tensor]
"""torch.sum, torch.amin or torch.amax: of a tensor, over its dimensions."""


@dataclass(eq=False)
class TensorSensitivity:
    """Statistics of one tensor, float64 [channels].

    Attributes:
        low, high: extremes.
        gain: noise of the outputs, relative to their power, for an error of variance 1 in every
            element; elements that are zero have no error.
    """

    low: torch.Tensor
    high: torch.Tensor
    gain: torch.Tensor


@dataclass(frozen=True)
class Sensitivity:
    """Sensitivity of a network.

    Attributes:
        tensors: tensors by name.
        weights: weight by name: the gain of every element, in the weight's shape; for a large
            weight, of its `sampled_rows`, which represent the others.
    """

    tensors: Mapping[str, TensorSensitivity]
    weights: Mapping[str, torch.Tensor]


def measure_sensitivity(
    module: fx.GraphModule,
    batches: Iterable[Sequence[torch.Tensor]],
    axes: Mapping[str, int],
    weights: Mapping[str, int],
) -> Sensitivity:
    """Run batches forwards and backwards, and measure sensitivities.

    Args:
        batches: batches of the tensors that the graph takes, in order.
        axes: tensors to measure -> dimension of their channels.
        weights: constants to measure -> dimension of their layers' rows.

    Raises:
        RuntimeError: an operator has no derivative.
    """
    run = _SensitivityRun(module, axes, weights)
    count = len(run_backwards(run, batches))
    for tensor in run.tensors.values():
        tensor.gain /= max(count, 1)
    gains = {name: gain / max(count, 1) for name, gain in run.weights.items()}
    return Sensitivity(run.tensors, gains)


def row_stride(weight: torch.Tensor) -> int:
    """Return n so that every n-th row of a weight gives at most about MAX_WEIGHT_ELEMENTS."""
    return math.ceil(weight.numel() / MAX_WEIGHT_ELEMENTS) | 1


def sampled_rows(t: torch.Tensor, axis: int, step: int) -> torch.Tensor:
    return t.movedim(axis, 0)[::step].movedim(0, axis)


def run_backwards(
    run: fx.Interpreter,
    batches: Iterable[Sequence[torch.Tensor]],
    needed: Collection[int] | None = None,
) -> list[int]:
    """Run batches forwards, and random signs of their outputs backwards; return their numbers.

    Args:
        needed: numbers of the batches to run, by default all. Signs are drawn for the others, too,
            so that later ones stay the same; the first batch of each size always runs.

    Raises:
        RuntimeError: an operator has no derivative.
    """
    generator, ran = torch.Generator().manual_seed(0), list[int]()
    known: dict[tuple[torch.Size, ...], list[torch.Size]] = {}
    with torch.enable_grad():
        for number, batch in enumerate(batches):
            sizes = tuple(t.shape for t in batch)
            if needed is not None and number not in needed and sizes in known:
                for shape in known[sizes]:
                    _draw(shape, generator)
                continue
            results = pytree.tree_leaves(run.run(*batch, enable_io_processing=False))
            outputs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
            known[sizes] = [o.shape for o in outputs]
            signs = [_signs(o, generator) for o in outputs]
            if outputs:  # none depends on a measured value by differentiable operators
                torch.autograd.backward(outputs, signs)
            ran.append(number)
    return ran


def _draw(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 2, shape, generator=generator)


def _signs(output: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return random signs, scaled to make the noise relative to the power of this output."""
    signs = _draw(output.shape, generator) * 2 - 1
    power = output.detach().double().square().sum().sqrt().clamp(min=1e-30)
    return (signs.to(output.device) / power).to(output.dtype)


def _rows(t: torch.Tensor, axis: int) -> tuple[slice, ...]:
    """Return the image rows to use for the gains; () for all.

    An odd step, since rows that a stride skips have less effect than the others.
    """
    if axis != 1 or t.dim() < 3:
        return ()
    step = t.numel() // (t.shape[1] * ELEMENTS_PER_CHANNEL)
    return (slice(None), slice(None), slice(None, None, step | 1)) if step > 1 else ()


def _by_channel(reduce: Reduction, t: torch.Tensor, axis: int) -> torch.Tensor:
    """Reduce over all dimensions but that of the channels.

    Reducing long lines of memory is up to 25 times as fast as reducing to few channels: the lines
    are reduced first, samples and all, and then their one sum or extreme.
    """
    lines = t.movedim(axis, -1)
    if not lines.is_contiguous():  # channels are not the innermost dimension
        others = [d for d in range(t.dim()) if d != axis % t.dim()]
        if len(others) < 2:
            return reduce(t, others) if others else t
        return reduce(reduce(t, others[0]), [d - 1 for d in others[1:]])
    channels = lines.shape[-1]
    lines = lines.reshape(-1, channels)
    width = math.gcd(len(lines), 1 << max(1, LINE // max(1, channels)).bit_length() - 1)
    if width > 1:
        lines = reduce(lines.reshape(-1, width * channels), 0).reshape(width, channels)
    return reduce(lines, 0)


class _SensitivityRun(fx.Interpreter):
    """Runs a graph with gradient hooks on the measured values."""

    def __init__(
        self, module: fx.GraphModule, axes: Mapping[str, int], weights: Mapping[str, int]
    ) -> None:
        super().__init__(module)
        self.axes, self.weight_axes = axes, weights
        self.tensors: dict[str, TensorSensitivity] = {}
        self.weights: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        value, name = super().run_node(n), G.name_of(n)
        if name in self.weight_axes:
            return self._weight(name, value.detach())
        if name in self.axes and isinstance(value, torch.Tensor):
            return self._tensor(name, value)
        return value.detach() if n.op == "get_attr" else value

    def _weight(self, name: str, value: torch.Tensor) -> torch.Tensor:
        axis, step = self.weight_axes[name], row_stride(value)
        part = sampled_rows(value, axis, step)
        self.weights.setdefault(name, torch.zeros_like(part, dtype=torch.float64))
        share = part.numel() / value.numel()

        def add(gradient: torch.Tensor | None) -> None:
            if gradient is None:
                return
            self.weights[name] += sampled_rows(gradient, axis, step).double().square() / share

        value.requires_grad_().register_hook(add)
        return value

    def _tensor(self, name: str, value: torch.Tensor) -> torch.Tensor:
        data = value.detach()
        axis = self.axes[name]
        rows = _rows(data, axis)
        low, high = (_by_channel(f, data, axis).double().cpu() for f in (torch.amin, torch.amax))
        total = self.tensors.setdefault(name, TensorSensitivity(low, high, torch.zeros_like(low)))
        total.low, total.high = torch.minimum(total.low, low), torch.maximum(total.high, high)

        def add(gradient: torch.Tensor | None) -> None:
            if gradient is None:  # no output depends on this result
                return
            part, elements = (gradient[rows], data[rows]) if rows else (gradient, data)
            squares = part.square().mul_(
                elements.sign().abs_()
            )  # a bool mask takes 3 times as long
            share = squares.numel() / data.numel()
            total.gain += _by_channel(torch.sum, squares, axis).double().cpu() / share

        value = value if value.requires_grad else data.requires_grad_()
        value.register_hook(add)
        return value
