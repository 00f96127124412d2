"""Smoothing: channels of a layer's input divided by their size, its weights multiplied by it.

y = W x = (W s) (x / s), as in SmoothQuant (Xiao et al. 2022): the division takes the wide channels
out of the one range that the tensor has, the weights have a range per output channel and take
them on. It is folded into the operator that made x where that has constants of its own and nobody
else reads it; elsewhere it is one float multiplication before the quantization.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import fx, nn

from qtool import graph as G
from qtool.calibration import Calibration
from qtool.observers import Statistic
from qtool.observers.min_max import MinMax
from qtool.plan import CHANNELS, QuantPlan
from qtool.plan.channels import layers_behind

__all__ = ["REASON", "smooth"]

REASON = "wide channels of a linear layer's input are moved into its weights"

STRENGTH = 0.85  # of the ratio between channels, how much goes into the weights (alpha)
WORTH = 3.0  # widest channel over the median one; below that the range is not what hurts
SMALLEST = 1e-5  # of the widest channel: a channel that was never seen is not blown up

aten = torch.ops.aten


def smooth(
    module: fx.GraphModule, plan: QuantPlan, calibration: Calibration
) -> dict[str, Statistic]:
    """Smooths, in place, the inputs of linear layers whose channels differ enough.

    Returns the range of every tensor that is smooth now, by the name it has: its own, or that of
    the new multiplication.
    """
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    found: dict[str, Statistic] = {}
    for point in plan:
        seen = calibration.statistics.get(point.name)
        if point.kind != CHANNELS or seen is None or seen.empty:
            continue
        low, high = (t.numpy() for t in seen.extent())
        source, readers = nodes[point.edges[0].source], [nodes[e.user] for e in point.edges]
        layers = layers_behind(readers)
        size = np.maximum(np.abs(low), np.abs(high))
        if size.max() < WORTH * np.median(size):
            continue
        factor = _factors(module, size, layers)
        _multiply_weights(module, layers, factor)
        folded = set(source.users) == set(readers) and _fold(module, source, factor)
        made = source if folded else _divide(module, source, readers, factor)
        found[G.name_of(made)] = _range(low, high, factor)
    return found


def _factors(module: fx.GraphModule, size: np.ndarray, layers: list[fx.Node]) -> torch.Tensor:
    """What each channel is divided by: float32 [in], geometric mean 1."""
    weights = [G.tensor(module, _weight(n)).detach().double().cpu() for n in layers]
    columns = torch.stack([w.abs().amax(0) for w in weights]).amax(0)
    channels = torch.from_numpy(size)
    channels = channels.clamp(min=SMALLEST * float(channels.max()))
    columns = columns.clamp(min=SMALLEST * float(columns.max()) or 1.0)
    logs = STRENGTH * channels.log() - (1 - STRENGTH) * columns.log()
    return (logs - logs.mean()).exp().float()


def _weight(layer: fx.Node) -> fx.Node:
    weight = layer.args[1]
    assert isinstance(weight, fx.Node)
    return weight


def _multiply_weights(module: fx.GraphModule, layers: list[fx.Node], factor: torch.Tensor) -> None:
    for layer in layers:
        _scale(module, _weight(layer), factor)


def _scale(module: fx.GraphModule, constant: fx.Node, factor: torch.Tensor) -> None:
    """The tensor behind a get_attr node times a vector along its last dimension, in its place."""
    owner, _, name = str(constant.target).rpartition(".")
    holder = module.get_submodule(owner)
    old = getattr(holder, name)
    new = old.detach() * factor.to(old.device, old.dtype)
    setattr(holder, name, nn.Parameter(new, old.requires_grad) if _is_parameter(old) else new)


def _is_parameter(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


CONSTANTS: Mapping[object, tuple[int, ...]] = {
    aten.layer_norm.default: (2, 3),
    aten.rms_norm.default: (2,),
    aten.mul.Tensor: (0, 1),  # the end of an RMSNorm that is written out
}
"""Operators that a division can be folded into, and the arguments that may hold its constants."""


def _fold(module: fx.GraphModule, source: fx.Node, factor: torch.Tensor) -> bool:
    """Divides the constants of the operator that made `source`, if it has some of its own."""
    places = CONSTANTS.get(source.target, ())
    given = [source.args[i] for i in places if i < len(source.args) and source.args[i] is not None]
    constants = [n for n in given if isinstance(n, fx.Node) and n.op == "get_attr"]
    wanted = 1 if source.target is aten.mul.Tensor else len(given)
    fits = [n for n in constants if G.shape(n) == tuple(factor.shape) and _alone(n)]
    if not given or not len(fits) == len(constants) == wanted:
        return False
    for each in constants:
        _scale(module, each, 1 / factor)
    return True


def _alone(constant: fx.Node) -> bool:
    same = [n for n in constant.graph.nodes if n.op == "get_attr" and n.target == constant.target]
    return len(same) == 1 and len(constant.users) == 1


def _divide(
    module: fx.GraphModule, source: fx.Node, readers: list[fx.Node], factor: torch.Tensor
) -> fx.Node:
    """A multiplication between `source` and these of its readers."""
    name = f"{G.name_of(source)}.smooth"
    first = next(n for n in module.graph.nodes if n in readers)
    held = G.add_tensor(module, first, (1 / factor).to(G.value(source).dtype), f"{name}.factors")
    made = G.add_call(first, aten.mul.Tensor, (source, held), name, source)
    for reader in readers:
        reader.replace_input_with(source, made)
    return made


def _range(low: np.ndarray, high: np.ndarray, factor: torch.Tensor) -> MinMax:
    """The extremes of the smooth tensor, from those of its channels."""
    by = factor.double().numpy()
    found = MinMax(None)
    ends = (low / by).min(), (high / by).max()
    found.low, found.high = (np.array([e], np.float32) for e in ends)
    return found
