"""Smoothing: channels of a layer's input divided by their size, its weights multiplied by it.

y = W x = (W s) (x / s), as in SmoothQuant (Xiao et al. 2022): the division takes the wide channels
out of the one range that the tensor has, the weights have a range per output channel and take
them on. It is folded into the operator that made x where that has constants of its own and nobody
else reads it; elsewhere it is one float multiplication before the quantization.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import fx, nn

from qtool import graph as G
from qtool.calibration import Calibration
from qtool.observers.min_max import MinMax
from qtool.plan import CHANNELS, Point, QuantPlan
from qtool.plan.channels import layers_behind
from qtool.types import ObserverSpec

__all__ = ["REASON", "Factors", "find_factors", "from_text", "smooth", "smooth_ranges", "to_text"]

Factors = Mapping[str, torch.Tensor]
"""Tensor name -> what its channels are divided by: float32 [channels]."""

REASON = "wide channels of a linear layer's input are moved into its weights"

STRENGTH = 0.85  # of the ratio between channels, how much goes into the weights (alpha)
WORTH = 3.0  # widest channel over the median one; below that the range is not what hurts
SMALLEST = 1e-5  # of the widest channel: a channel that was never seen is not blown up

aten = torch.ops.aten


def find_factors(module: fx.GraphModule, plan: QuantPlan, calibration: Calibration) -> Factors:
    """What to divide the channels of each tensor by, for those whose channels differ enough."""
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    found = {}
    for point in _watched(plan):
        seen = calibration.statistics.get(point.name)
        if not isinstance(seen, MinMax) or seen.empty:
            continue
        low, high = seen.extent()
        size = torch.maximum(low.abs(), high.abs())
        if float(size.max()) >= WORTH * float(size.median()):
            layers = layers_behind(nodes[e.user] for e in point.edges)
            found[point.edges[0].source] = _factors(module, size, layers)
    return found


def smooth(module: fx.GraphModule, plan: QuantPlan, factors: Factors) -> dict[str, str]:
    """Divides tensors by their factors, in place, and multiplies the weights behind them.

    Returns the name that each smooth tensor has: its own, or that of the new multiplication.
    """
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    made = {}
    for point in _watched(plan):
        name = point.edges[0].source
        if name not in factors:
            continue
        source, readers, factor = nodes[name], [nodes[e.user] for e in point.edges], factors[name]
        for layer in layers_behind(readers):
            _scale(module, _weight(layer), factor)
        folded = set(source.users) == set(readers) and _fold(module, source, factor)
        made[name] = name if folded else G.name_of(_divide(module, source, readers, factor))
    return made


def smooth_ranges(
    calibration: Calibration, factors: Factors, made: Mapping[str, str]
) -> Calibration:
    """The calibration with the range of every smooth tensor, from the extremes of its channels."""
    specs, statistics = dict(calibration.specs), dict(calibration.statistics)
    for source, name in made.items():
        seen = calibration.statistics[f"{source}.{CHANNELS}"]
        assert isinstance(seen, MinMax)
        low, high = seen.extent()
        by, range_ = factors[source].double(), MinMax(None)
        range_.update(torch.stack([low / by, high / by]).float())
        specs[name], statistics[name] = ObserverSpec("minmax"), range_
    return replace(calibration, specs=specs, statistics=statistics)


def to_text(factors: Factors) -> str:
    """Factors as text for a file's metadata: JSON of little-endian float32 in base64."""
    raw = {n: f.numpy().astype("<f4").tobytes() for n, f in factors.items()}
    return json.dumps({n: base64.b64encode(r).decode("ascii") for n, r in raw.items()})


def from_text(text: str) -> Factors:
    """The inverse of `to_text`. Raises ValueError for anything else."""
    raw = {n: base64.b64decode(r, validate=True) for n, r in json.loads(text).items()}
    return {n: torch.from_numpy(np.frombuffer(r, "<f4").astype(np.float32)) for n, r in raw.items()}


def _watched(plan: QuantPlan) -> list[Point]:
    return [p for p in plan if p.kind == CHANNELS]


def _factors(module: fx.GraphModule, channels: torch.Tensor, layers: list[fx.Node]) -> torch.Tensor:
    """float32 [in], geometric mean 1; from the size of each channel and of its weights."""
    weights = [G.tensor(module, _weight(n)).detach().double().cpu() for n in layers]
    columns = torch.stack([w.abs().amax(0) for w in weights]).amax(0)
    channels = channels.clamp(min=SMALLEST * float(channels.max()))
    columns = columns.clamp(min=SMALLEST * float(columns.max()) or 1.0)
    logs = STRENGTH * channels.log() - (1 - STRENGTH) * columns.log()
    return (logs - logs.mean()).exp().float()


def _weight(layer: fx.Node) -> fx.Node:
    weight = layer.args[1]
    assert isinstance(weight, fx.Node)
    return weight


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
