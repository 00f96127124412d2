"""Warnings on calibration data from which no useful ranges follow."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import fx
from torch.fx.node import map_arg

from qtool.core import graph as G
from qtool.core.data.calibration_samples import CalibrationSamples
from qtool.core.graph import FloatGraph
from qtool.core.graph.batch_norms import batch_norms
from qtool.core.random_inputs import Input

FEW_SAMPLES = 32
"""Below this number of samples there is a warning."""

_UNNORMALISED = 64.0  # normalised images reach 5, those of 0..255 nearly always exceed this
_CHANNELS = (1, 3, 4)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_ROUNDED_OFF = 0.95
"""Share of zeros among integers of -1 to 1 from which an image counts as one of floats that were
rounded to zero. Real bytes have larger values; masks and one-hot values are no images of an input
alone, or have more ones."""
_FAR = 20.0  # times the reach of the median sample
_RARE = 0.02  # share of the samples
_FEWEST_FOR_EXTREMES, _NAMED_SAMPLES = 16, 3


_COMPARED = 32  # samples
_SMALL = 0.6
"""Spread of images of 0 to 1 relative to that in training, in the median channel, below which they
count as not normalised: scaling to -1 to 1 doubles it, and usual deviations make it three to five
times as large."""

_NORMALISES = ("aten::sub", "aten::div", "aten::mul", "aten::batch_norm")
_MOVES = ("aten::_to_copy", "aten::to", "aten::permute", "aten::transpose")


def normalised_inputs(graph: FloatGraph) -> frozenset[str]:
    """Return the inputs that a network normalizes itself: with a BatchNorm, or a convolution of
    each channel that one was folded into, or with constants that it subtracts or divides by."""
    pairs = zip(G.placeholders(graph.graph), graph.inputs, strict=True)
    return frozenset(each.name for node, each in pairs if _is_normalised(node))


def _is_normalised(node: fx.Node) -> bool:
    kinds = {user: str(getattr(user.target, "_schema", user).name) for user in node.users}
    own = [u for u, kind in kinds.items() if kind in _NORMALISES or _convolves_channels(u, kind)]
    moves = [user for user, kind in kinds.items() if kind in _MOVES]
    return bool(own) or any(map(_is_normalised, moves))


def _convolves_channels(node: fx.Node, kind: str) -> bool:
    if not kind.partition("::")[2].startswith("conv"):
        return False
    shapes = [G.shape(n)[1:] for n in node.all_input_nodes[1:] if G.rank(n) == 4]
    return shapes == [(1, 1, 1)]


def missing_normalisation(graph: FloatGraph, samples: CalibrationSamples) -> str | None:
    """Return a warning if images of 0 to 1 vary far less than those that the network was trained
    on; a BatchNorm of the images, or of a layer of them, has these statistics.

    Args:
        graph: as captured, before BatchNorms are folded.
        samples: samples of the calibration.
    """
    batch = next(iter(samples.batches(_COMPARED, _COMPARED, holdout=None)), ())
    for node, info, x in zip(G.placeholders(graph.graph), graph.inputs, batch, strict=False):
        if not (is_image(info) and x.is_floating_point() and x.min() >= 0 and x.max() <= 1):
            continue
        ratios = list(_spreads(graph.module, node, x))
        if ratios and (least := min(ratios)) < _SMALL:
            return (
                f"input '{info.name}' has values from {x.min():g} to {x.max():g}, which vary "
                f"{least:.2g} times as much as those that the BatchNorm behind it was trained on: "
                "check the normalisation"
            )
    return None


def _spreads(module: fx.GraphModule, image: fx.Node, x: torch.Tensor) -> Iterator[float]:
    """Yield the spread of the values in front of each BatchNorm of an input, or of one layer of
    it, relative to that in training, in the median channel. x: the input, [samples, ...]."""
    for norm in batch_norms(module):
        layer = G.source(norm)
        own = {n for n in layer.all_input_nodes if n.op != "get_attr"}
        mean, variance = (G.tensor(module, G.source(norm, i)).detach().float() for i in (3, 4))
        untrained = bool((mean == 0).all() and (variance == 1).all())
        if untrained or (layer is not image and own != {image}):
            continue
        y = x
        if layer is not image:
            values = {n: x if n is image else G.tensor(module, n) for n in layer.all_input_nodes}
            args, kwargs = map_arg((layer.args, layer.kwargs), values.__getitem__)
            with torch.no_grad():
                y = layer.target(*args, **kwargs)  # type: ignore[operator]  # a call of a function
        spread = y.var([d for d in range(y.dim()) if d != 1], unbiased=False)
        yield float((spread / variance.clamp(min=1e-12)).sqrt().median())


class DataWarnings:
    """Collects the extremes of the inputs, batch by batch.

    Args:
        inputs: inputs of the model.
        normalised: names of those that the network normalizes itself.
    """

    def __init__(self, inputs: Sequence[Input], normalised: Collection[str] = ()) -> None:
        self._inputs, self._normalised = inputs, normalised
        self._bounds: dict[str, tuple[float, float]] = {}
        self._reach: dict[str, list[float]] = {}  # of every sample, the largest absolute value
        self._origins: dict[str, list[tuple[int, int]]] = {}
        self._zeros: dict[str, tuple[float, int]] = {}  # of images of integers: zeros, elements
        self._first: dict[str, torch.Tensor] = {}
        self._are_equal, self._samples = True, 0  # those so far, of this process
        self._batches = 0

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add one batch, in the order of the inputs."""
        for each, tensor in zip(self._inputs, tensors, strict=True):
            self._compare(each.name, tensor)
            if tensor.is_floating_point() and tensor.numel():
                low, high = (float(t) for t in torch.aminmax(tensor))
                old = self._bounds.get(each.name, (low, high))
                self._bounds[each.name] = min(low, old[0]), max(high, old[1])
                rows = tensor.reshape(len(tensor), -1) if tensor.dim() else tensor.reshape(1, 1)
                reach = torch.maximum(rows.amax(1), -rows.amin(1)).tolist()
                self._reach.setdefault(each.name, []).extend(reach)
                origins = ((self._batches, row) for row in range(len(reach)))
                self._origins.setdefault(each.name, []).extend(origins)
            elif is_image(each) and tensor.dtype in _INTEGERS and tensor.numel():
                self._count_zeros(each.name, tensor)
        self._samples += len(tensors[0]) if tensors and tensors[0].dim() else 1
        self._batches += 1

    def _count_zeros(self, name: str, tensor: torch.Tensor) -> None:
        """Count the zeros of an image; none for good if it has values other than -1 to 1."""
        zeros, total = self._zeros.get(name, (0.0, 0))
        signed = tensor.view(torch.int8) if tensor.dtype == torch.uint8 else tensor  # 255 was -1
        black_and_white = signed is not tensor and not bool((tensor == 1).any())
        small = bool(((signed >= -(not black_and_white)) & (signed <= 1)).all())
        zeros += float((tensor == 0).sum()) if small else -math.inf
        self._zeros[name] = zeros, total + tensor.numel()

    def _compare(self, name: str, tensor: torch.Tensor) -> None:
        """Note whether the samples of an input are equal to its first one."""
        if not (self._are_equal and tensor.dim() and len(tensor)):
            return
        first = self._first.setdefault(name, tensor[0].clone())
        self._are_equal = first.shape == tensor.shape[1:] and bool((tensor == first).all())

    def warnings(self, samples: int) -> tuple[str, ...]:
        """Return warnings on all data.

        Args:
            samples: their number, over all processes.
        """
        warnings = (
            _few(samples),
            self._constant() or self._repeated(),
            *(self._unnormalised(each) for each in self._inputs),
            self._rounded_off(),
            *(self._extreme(each.name) for each in self._inputs),
        )
        return tuple(filter(None, warnings))

    def _constant(self) -> str | None:
        """Return a warning if all inputs are constant; a mask may be."""
        if not self._bounds or any(low != high for low, high in self._bounds.values()):
            return None
        names = " and ".join(f"'{name}'" for name in self._bounds)
        value = next(iter(self._bounds.values()))[0] + 0.0  # not -0
        return (
            f"every value of input {names} is {value:g} in the calibration data; no range and no "
            "accuracy on real data follows from it"
        )

    def _repeated(self) -> str | None:
        """Return a warning if all samples are equal."""
        if not (self._are_equal and self._first and self._samples > 1):
            return None
        return (
            f"all {self._samples} calibration samples are equal; ranges need samples that differ: "
            "check how the data is read"
        )

    def _unnormalised(self, each: Input) -> str | None:
        low, high = self._bounds.get(each.name, (0.0, 1.0))
        if each.name in self._normalised:
            return None
        if is_image(each) and low >= 0 and high > _UNNORMALISED:
            return (
                f"input '{each.name}' has values from {low:g} to {high:g}; most networks take "
                "images divided by 255 and normalised: check the preprocessing"
            )
        return None

    def _rounded_off(self) -> str | None:
        """Return a warning if the only image of the inputs was one of floats of 0 to 1, or -1 to 1,
        whose fractions are lost."""
        images = [each.name for each in self._inputs if is_image(each)]
        if len(images) != 1 or images[0] not in self._zeros:
            return None
        zeros, total = self._zeros[images[0]]
        if zeros < _ROUNDED_OFF * total:
            return None
        return (
            f"{zeros / total:.1%} of the values of input '{images[0]}' are 0 in the calibration "
            "data, and the others 1 or -1: if these were images of 0 to 1, their fractions are "
            "lost; give integers of the whole range, such as 0 to 255"
        )

    def _extreme(self, name: str) -> str | None:
        """Return a warning on a few samples far beyond all others, which alone decide ranges."""
        reach = torch.tensor(self._reach.get(name, ()), dtype=torch.float64)
        if len(reach) < _FEWEST_FOR_EXTREMES:
            return None
        usual = float(reach.median())
        far = (reach > _FAR * usual).nonzero()[:, 0].tolist()
        if not usual or not far or len(far) > max(1, _RARE * len(reach)):
            return None
        where = ", ".join(
            "batch {}, row {}".format(*self._origins[name][i]) for i in far[:_NAMED_SAMPLES]
        )
        more = f" and {len(far) - _NAMED_SAMPLES} more" if len(far) > _NAMED_SAMPLES else ""
        return (
            f"input '{name}' reaches {float(reach.max()):.3g} in {where}{more}, {usual:.3g} in the "
            "median sample: so few samples set its range, at the cost of all others; leave them "
            "out if they are no real data"
        )


def is_image(each: Input) -> bool:
    """Return whether an input is images of one, three or four channels."""
    return len(each.shape) == 4 and (each.shape[1] in _CHANNELS or each.shape[3] in _CHANNELS)


def _few(samples: int) -> str | None:
    if samples >= FEW_SAMPLES:
        return None
    return (
        f"calibrated on {samples} sample{'s' * (samples != 1)}; ranges and recovery steps need at "
        f"least {FEW_SAMPLES}, better 100 to 500"
    )
