"""What a tensor is used for: the function that all of its readers compute of it.

Kernels round the result of a convolution before its activation function. The error that counts is
the one behind it: a SiLU makes all values below -10 the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from qtool.calibration.scale_alignment import Range
from qtool.core import graph as G
from qtool.core.ops import row_of
from qtool.observers import Bins

Floats = NDArray[np.float64]
Function = Callable[[Floats], Floats]
_Step = Callable[[torch.Tensor], torch.Tensor]

_RATIOS = np.exp2(-np.arange(33) / 4)  # of an end, the widest first
_ALONE = frozenset({"sigmoid", "hard_sigmoid", "silu", "hard_swish", "gelu", "tanh", "elu"})
"""Functions that are flat far from zero, on one side or on both."""

_GATES = frozenset({"sigmoid", "hard_sigmoid", "clip"})
_LINEAR = frozenset({"add", "mul", "rescale"})
"""Of a hard swish in integers, x * clip(x / 6 + 1 / 2), in front of the clip."""


def function_behind(module: fx.GraphModule, node: fx.Node) -> Function | None:
    """Return the function that all readers of a tensor compute of it; None of others.

    That is one of `_ALONE`, or the product of the tensor and a gate that is computed of it, as
    SiLU and hard swish are written.
    """
    users = list(node.users)
    if len(users) == 1:
        step = _step(module, users[0], node) if _key(users[0]) in _ALONE else None
        return None if step is None else _values([step], gated=False)
    if len(users) != 2:
        return None
    for product, first in (users, users[::-1]):
        steps = list(_gate(module, node, first, product)) if _key(product) == "mul" else []
        if steps:
            return _values(steps, gated=True)
    return None


def without_flat_ends(
    found: Range, bins: Bins, function: Function, levels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a range whose ends are nearer to zero where a function is flat at them.

    Codes are then finer for the other values. Such an end has the least squared error behind the
    function; the other ends, where values differ behind it, too, stay as they are.

    Args:
        found: the range of a tensor, rank 0.
        bins: its histogram.
        function: the one that its readers compute of it.
        levels: highest code less the lowest.
    """
    ends = [float(end) for end in found]
    for i in (0, 1):
        step = (ends[1] - ends[0]) / levels
        whole, half = function(np.array([ends[i], ends[i] / 2]))
        if step > 0 and abs(whole - half) <= step:
            each = [(ends[i] * ratio, ends[1 - i]) for ratio in _RATIOS]
            errors = [_error(min(e), max(e), bins, function, levels) for e in each]
            ends[i] = each[int(np.argmin(errors))][0]
    low, high = (torch.tensor(end, dtype=torch.float64) for end in ends)
    return low, high


def _error(low: float, high: float, bins: Bins, function: Function, levels: int) -> float:
    """Return the summed squared error behind a function of a tensor with codes for a range."""
    x = (bins.edges[1:] + bins.edges[:-1]) / 2
    slope = np.diff(function(bins.edges)) / np.diff(bins.edges)
    rounded = ((high - low) / levels * slope) ** 2 / 12
    clipped = (function(np.clip(x, low, high)) - function(x)) ** 2
    inside = (x >= low) & (x <= high)
    return float((bins.counts * np.where(inside, rounded, clipped)).sum())


def _gate(
    module: fx.GraphModule, node: fx.Node, user: fx.Node, product: fx.Node
) -> Iterator[_Step]:
    """Yield the steps from a tensor to the gate that a product multiplies it with; none of others.

    Args:
        user: first step.
    """
    steps, source = [], node
    while _key(user) in _LINEAR | _GATES and (step := _step(module, user, source)) is not None:
        steps.append(step)
        if list(user.users) == [product]:
            if _key(user) in _GATES and set(product.args[:2]) == {node, user}:
                yield from steps
            return
        if len(user.users) != 1:
            return
        source, user = user, next(iter(user.users))


def _step(module: fx.GraphModule, node: fx.Node, source: fx.Node) -> _Step | None:
    """Return a node as a function of one tensor; None where it reads others but numbers."""
    arguments = list(node.args)
    for i, argument in enumerate(arguments):
        if isinstance(argument, fx.Node) and argument is not source:
            if argument.op != "get_attr" or (value := G.tensor(module, argument)).numel() != 1:
                return None
            arguments[i] = float(value)
    places = [i for i, argument in enumerate(arguments) if argument is source]
    target, keywords = node.target, dict(node.kwargs)
    if len(places) != 1 or not callable(target):
        return None

    def step(x: torch.Tensor) -> torch.Tensor:
        values = [x if i == places[0] else a for i, a in enumerate(arguments)]
        result: torch.Tensor = target(*values, **keywords)
        return result

    return step


def _key(node: fx.Node) -> str:
    row = row_of(node)
    return "" if row is None else row.key


def _values(steps: list[_Step], gated: bool) -> Function:
    @torch.no_grad()
    def function(x: Floats) -> Floats:
        result = tensor = torch.from_numpy(x)
        for step in steps:
            result = step(result)
        values: Floats = (tensor * result if gated else result).numpy()
        return values

    return function
