"""Takes the scales of another tool's file for the points of a plan; says which it cannot take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from qtool import observers
from qtool.backends.kernels.params import same_params
from qtool.calibration.scale_alignment import clamp_limits
from qtool.core import graph as G
from qtool.core.affine import Affine
from qtool.core.errors import CalibrationError
from qtool.core.graph import FloatGraph
from qtool.core.number_texts import quantity
from qtool.core.quant_params import QuantParams, unbounded_codes
from qtool.core.remedies import OtherFile
from qtool.core.types import INT8, INT8_NARROW, Array, Observed, QType
from qtool.planning.plan import Kind, Point, QuantPlan
from qtool.planning.targets import target
from qtool.plugins.scales.file_names import FileNames
from qtool.plugins.scales.readers import FileScales, TensorScale

LEAST_SHARE = 0.5
"""Share of the names in a file of scales that the model has to have."""

OTHER_WEIGHTS = 0.2
"""Error of dequantized weights, relative to their norm, above which they are other weights: 8-bit
codes of 15 files have at most 0.025, equalized ones and those of another training 0.4 and more."""

Limits = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, eq=False)
class KnownScales:
    """Parameters that another tool chose.

    Attributes:
        params: point -> parameters.
        names: point -> name of its tensor in the file of scales.
        refused: name of a tensor in the file -> why its scale is not taken.
        notes: sentences on what was taken and what was not, with the reasons.
    """

    params: Mapping[str, QuantParams]
    names: Mapping[str, str]
    refused: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass
class _Match:
    file: FileScales
    names: FileNames
    graph: FloatGraph
    plan: QuantPlan
    params: dict[str, QuantParams] = field(default_factory=dict)
    taken: dict[str, TensorScale] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    clipped: list[str] = field(default_factory=list)

    def by_name(self, weights: bool) -> dict[str, TensorScale]:
        """Return the scales of layers' weights, or of other tensors, by all their names."""
        return {n: s for s in self.file.scales if s.is_weight is weights for n in s.names}

    def refuse(self, scale: TensorScale, reason: str) -> None:
        self.reasons[scale.names[0]] = reason

    def take(self, point: Point, scale: TensorScale, params: QuantParams | str) -> None:
        """Take the parameters; a text is the reason why they cannot be taken."""
        if isinstance(params, str):
            self.refuse(scale, params)
            return
        self.params[point.name] = params
        self.taken[point.name] = scale


def known_scales(
    file: FileScales, names: FileNames, graph: FloatGraph, plan: QuantPlan
) -> KnownScales:
    """Return the parameters of the points of a plan that a file of scales has.

    Raises:
        CalibrationError: the scales are of another model, or of other weights.
    """
    _check_names(file, names)
    match = _Match(file, names, graph, plan, reasons=dict(file.refused))
    _take_weights(match)
    _take_activations(match)
    for scale in file.scales:
        if scale not in match.taken.values() and scale.names[0] not in match.reasons:
            known = names.known.intersection(scale.names)
            match.refuse(scale, "it is float or fused here" if known else "the model has no such")
    taken = {point: scale.names[0] for point, scale in match.taken.items()}
    return KnownScales(match.params, taken, match.reasons, tuple(_notes(match)))


def _check_names(file: FileScales, names: FileNames) -> None:
    known = sum(bool(names.known.intersection(s.names)) for s in file.scales)
    if known < LEAST_SHARE * len(file.scales):
        raise CalibrationError(
            f"{file.path}: the model has {known} of its {len(file.scales)} tensors "
            f"({known / len(file.scales):.0%}), so its scales are of another model",
            OtherFile("give those of this one"),
        )


def _take_activations(match: _Match) -> None:
    by_name = match.by_name(weights=False)
    nodes = {G.name_of(n): n for n in match.graph.graph.nodes}
    limits = clamp_limits(match.plan, nodes)
    sharing = defaultdict[str, list[Point]](list)
    for point in match.plan:
        if point.kind is Kind.ACTIVATION:
            root, factor = match.plan.origin(point.name)
            sharing[root] += [point] if factor == 1.0 else []
    for observed in match.plan.observed():
        points = sorted(sharing[observed.name], key=lambda p: p is not observed)
        tensors = [match.names.tensors.get(p.tensor, ()) for p in points]
        scales = [next((by_name[n] for n in each if n in by_name), None) for each in tensors]
        for point, scale in zip(points, scales, strict=True):
            if scale is None:
                continue
            assert isinstance(observed.spec, Observed)
            params = _activation(scale.params, observed.spec, limits.get(observed.name))
            first = match.params.get(observed.name)
            if first is None:
                match.take(observed, scale, params)
            elif not (isinstance(params, QuantParams) and same_params(params, first)):
                match.refuse(scale, f"it has the scale of '{observed.tensor}' here")
                continue
            if observed.name in match.params:
                match.taken[point.name] = scale


def _activation(
    params: Affine, spec: Observed, limits: tuple[float, float] | None
) -> QuantParams | str:
    """Return the parameters of an activation; a text where they cannot be taken."""
    if params.axis is not None:
        return "a scale for each channel"
    if params.qtype.bits != spec.qtype.bits:
        return f"{params.qtype.bits} bits, and here it has {spec.qtype.bits}"
    zero = int(params.zero_point) - params.qtype.qmin + spec.qtype.qmin
    if spec.symmetric and zero != (spec.qtype.qmin + spec.qtype.qmax + 1) // 2:
        return "it is asymmetric, and the target wants symmetric ones"
    scale = float(params.scale)
    if scale < observers.MIN_SCALE:
        return "a scale below 2^-60"
    if limits is not None and limits[0] == 0:  # equal steps; codes of negative values are free
        zero = spec.qtype.qmin
    low, high = (spec.qtype.qmin - zero) * scale, (spec.qtype.qmax - zero) * scale
    if limits is not None and (low < limits[0] - scale / 2 or high > limits[1] + scale / 2):
        return "its codes go beyond the clamp that is fused into the layer here"
    return QuantParams(spec.qtype, torch.tensor(params.scale), torch.tensor(zero))


def _take_weights(match: _Match) -> None:
    weights, others = match.by_name(weights=True), match.by_name(weights=False)
    nodes = {G.name_of(n): n for n in match.graph.graph.nodes}
    other = 0
    for point in match.plan:
        if point.kind is not Kind.WEIGHT or not isinstance(point.spec, Observed):
            continue
        layer = point.edges[0].user
        stored = match.names.weights.get(layer, "")
        scale = weights.get(layer) or weights.get(stored) or others.get(stored)
        if scale is None or point.spec.block is not None:
            continue
        weight = G.read_values(G.tensor(match.graph.module, nodes[point.edges[0].source]))
        values, axis = _in_layout(scale, weight.numpy())
        if scale.values is not None and values is None:
            match.refuse(scale, "its weights have another shape here")
        elif values is not None and _error(values, weight.numpy()) > OTHER_WEIGHTS:
            match.refuse(scale, "its weights are not those of the model")
            other += 1
        else:
            channels = None if point.spec.axis is None else weight.shape[point.spec.axis]
            params = _weight(scale.params, axis, point.spec, channels)
            if isinstance(params, QuantParams):
                params = replace(params, qtype=_weight_type(match.plan.target, params.qtype))
                match.clipped += [layer] if _is_clipped(params, weight) else []
            match.take(point, scale, params)
    if other > len(match.params):
        raise CalibrationError(
            f"{match.file.path}: the weights of {quantity(other, 'layer')} are not those of the "
            "model: the file was made of another training, or the tool changed them before it "
            "quantized (equalization)",
            OtherFile("give scales of this model, made without a change of weights"),
        )


def _in_layout(scale: TensorScale, weight: Array) -> tuple[Array | None, int | None]:
    """Return the file's weights and their axis in the layout of the graph: the closer of the
    matrix and its transpose. The graph may have more input channels, which are zero."""
    values, axis = scale.values, scale.params.axis
    if values is None:
        return None, None if axis is None else -1
    forms = [(values, axis)]
    if values.ndim == 2:
        forms.append((values.T, None if axis is None else 1 - axis))
    forms = [(v, a) for v, a in forms if _fits(v.shape, weight.shape)]
    return min(forms, key=lambda form: _error(form[0], weight), default=(None, None))


def _fits(shape: tuple[int, ...], padded: tuple[int, ...]) -> bool:
    return len(shape) == len(padded) and all(n <= m for n, m in zip(shape, padded, strict=True))


def _error(values: Array, weight: Array) -> float:
    """Return the error of weights relative to their norm, without channels that were added."""
    weight = weight[tuple(map(slice, values.shape))]
    norm = float(np.linalg.norm(weight))
    return float(np.linalg.norm(values - weight)) / norm if norm else 0.0


def _weight(
    params: Affine, axis: int | None, spec: Observed, channels: int | None
) -> QuantParams | str:
    """Return the parameters of a weight; a text where they cannot be taken.

    Args:
        axis: axis of the file's scales in this layout; -1: that of the channels, if they are as
            many.
        channels: output channels of the weight; None: it has one scale.
    """
    if params.qtype.bits != spec.qtype.bits:
        return f"{params.qtype.bits} bits, and here it has {spec.qtype.bits}"
    middle = 0 if params.qtype.signed else (params.qtype.qmax + 1) // 2
    if (params.zero_point != middle).any():
        return "it is asymmetric, and weights are symmetric here"
    if axis is not None and (axis not in (-1, spec.axis) or params.scale.size != channels):
        return "its scales are along another axis"
    scale = torch.tensor(params.scale).clamp(min=observers.MIN_SCALE)
    if channels is not None:
        scale = scale.expand(channels).clone()
    return QuantParams(spec.qtype, scale, torch.zeros_like(scale).long(), spec.axis)


def _weight_type(name: str, planned: QType) -> QType:
    """Return the type of weights for a target: with the lowest code, as other tools use it, where
    products with unsigned activations are summed in 32 bits. 16 bits may overflow with it."""
    chosen = target(name)
    wide = chosen.saturation_limit is None and not chosen.types.activation.signed
    return INT8 if wide and planned is INT8_NARROW else planned


def _is_clipped(params: QuantParams, weight: torch.Tensor) -> bool:
    """Return whether the other tool has a code for a weight that these parameters do not have."""
    scale, zero = (params.along(t, weight.shape) for t in (params.scale, params.zero_point))
    codes = unbounded_codes(weight, scale, zero).clamp(INT8.qmin)
    return bool((codes < params.qtype.qmin).any())


def _notes(match: _Match) -> Iterator[str]:
    total = len(match.file.scales) + len(match.file.refused)
    used = len(set(match.taken.values()))
    yield f"{used} of {total} scales are those of {match.file.path} ({match.file.tool})"
    by_reason = defaultdict[str, list[str]](list)
    for name, reason in match.reasons.items():
        by_reason[reason].append(name)
    for reason, tensors in by_reason.items():
        yield f"not taken, since {reason}: {', '.join(tensors)}"
    if match.clipped:
        layers = ", ".join(match.clipped)
        yield f"weights with the code -128 have -127 here, with which no sum overflows: {layers}"
    own = [p.name for p in match.plan.observed() if p.name not in match.params]
    if own:
        yield f"no scale in the file, so that of the calibration: {', '.join(own)}"
