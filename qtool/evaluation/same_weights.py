"""Whether a quantized file was made from the weights of a float file, seen in the weights alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from qtool.backends.formats import open_file
from qtool.backends.model_file import ModelFile
from qtool.core.errors import VerificationError
from qtool.core.remedies import Argument, OtherFile
from qtool.core.types import Array
from qtool.core.weight_mark import weight_mark

OTHER_WEIGHTS = (
    OtherFile("give that one"),
    Argument("--other-model", text="accept other weights with {}"),
)
"""Remedies where a float model is not the one that a file was made from."""

_LEAST = 8  # rows and columns: fewer fit anything by their factors
_MOST = (128, 512)  # rows and columns of a tensor that are compared
_TENSORS = 32
_ROUNDS = 8
_ALIKE = 0.5  # correlation of codes and weights of one layer
_BY_CHANCE = 1.5  # times the correlation that is expected of numbers at random
_UNLIKE = 2  # weights of a shape that are like none: one may be stored in another order
_STEPS = 0.65  # deviation of the codes beyond which no rounding is
_GPTQ_STEPS = 1.2  # the same where the record has GPTQ: 0.96 on inputs of rank 3, 128 wide
_ORDERS = {
    2: ((0, 1), (1, 0)),
    3: ((0, 1, 2), (0, 2, 1), (1, 2, 0)),
    4: ((0, 1, 2, 3), (0, 2, 3, 1), (3, 0, 1, 2), (1, 2, 3, 0)),
}
"""Number of dimensions but 1s -> orders in which files of other formats and operators have them."""


@dataclass(frozen=True)
class WeightDeviation:
    """How far the codes of a file are from the float weights.

    Attributes:
        layers: number of weights that were compared.
        other: number of those that no rounding of the float weights makes.
        steps: median root mean square deviation, in steps of the codes.
        unlike: number of other weights, which are no more like a float weight of their shape than
            numbers at random are.
    """

    layers: int
    other: int
    steps: float
    unlike: int = 0

    @property
    def is_other(self) -> bool:
        """Whether most weights are others."""
        return 2 * self.other > self.layers


def check_same_files(files: Sequence[Path], other_model: bool = False) -> None:
    """Check that quantized files were made from the weights of the first file.

    Args:
        files: a float file, and others; what stores no codes of the first one's weights passes.
        other_model: accept other weights.

    Raises:
        VerificationError: one was not.
    """
    for file in () if other_model else files[1:]:
        check_same_weights(open_file(file), open_file(files[0]).constants(), files[0].name)


def check_same_weights(file: ModelFile, floats: Iterable[Array], name: str) -> WeightDeviation:
    """Check that a quantized file was made from float weights.

    Args:
        file: the quantized file.
        floats: constants of the float model.
        name: name of the float model, for the message.

    Raises:
        VerificationError: it was not.
    """
    conversion, floats = file.conversion(), list(floats)
    origin = None if conversion is None else conversion.info.origin
    if origin is not None and origin.mark and origin.mark == weight_mark(floats):
        return WeightDeviation(len(floats), 0, 0.0)  # GPTQ may move weights by many steps
    steps = [] if conversion is None else [change.step for change in conversion.info.changes]
    weights = compare_weights(file, floats, _GPTQ_STEPS if "gptq" in steps else _STEPS)
    if weights.is_other:
        raise VerificationError(
            f"{weights.other} of {weights.layers} weights are {weights.steps:.1f} steps from those "
            f"of {name}, rounding moves them by 0.3 to 0.6: it is not the model that "
            f"{file.path.name} was made from",
            *OTHER_WEIGHTS,
        )
    if conversion is None and not weights.layers and weights.unlike >= _UNLIKE:
        raise VerificationError(
            f"none of {weights.unlike} weights is like one of {name}: it is not the model that "
            f"{file.path.name} was made from",
            *OTHER_WEIGHTS,
        )
    return weights


def compare_weights(
    file: ModelFile, floats: Iterable[Array], limit: float = _STEPS
) -> WeightDeviation:
    """Compare the codes of weights with float weights of the same shape.

    A row and a column of a weight may have any factor: folded BatchNorms, equalization and
    SmoothQuant change no more. Weights without a similar float one are left out (packed, rotated),
    and counted where they are like none at all. Rounding to the nearest code deviates by 0.29
    steps, up or down at random by 0.58; GPTQ, which also moves later weights, by 0.3 to 0.6 in the
    median of a network.

    Args:
        file: the quantized file.
        floats: constants of the float model.
        limit: steps beyond which a weight is another one.
    """
    stored = (np.squeeze(a) for a in file.constants() if a.dtype.kind in "iu" and a.itemsize == 1)
    codes = [a for a in stored if a.ndim in _ORDERS and min(_matrix(a).shape) >= _LEAST]
    real = [a for a in map(np.squeeze, floats) if a.dtype.kind == "f" and a.ndim in _ORDERS]
    chosen = codes[:: max(1, len(codes) // _TENSORS)]
    each = [_deviation(code, real) for code in chosen]
    steps = [deviation for deviation in each if deviation not in (None, np.inf)]
    other = sum(deviation > limit for deviation in steps)
    median = float(np.median(steps)) if steps else 0.0
    return WeightDeviation(len(steps), other, median, each.count(np.inf))


def _deviation(code: Array, floats: Iterable[Array]) -> float | None:
    """Return the steps that codes are from the most similar float weight; None if none is, infinite
    if those of its shape are like it by chance alone."""
    own = _matrix(code)
    fits = [_fit(own, _matrix(each)) for each in _candidates(code, floats)]
    alike = [steps for steps, like in fits if like >= _ALIKE]
    chance = _BY_CHANCE * np.sqrt(sum(own.shape) / own.size)  # of a factor per row and column
    if not alike and fits and max(like for _, like in fits) <= chance < _ALIKE:
        return np.inf
    return min(alike, default=None)


def _candidates(code: Array, floats: Iterable[Array]) -> Iterator[Array]:
    same = (f for f in floats if f.ndim == code.ndim and sorted(f.shape) == sorted(code.shape))
    turned = chain.from_iterable((f.transpose(o) for o in _ORDERS[f.ndim]) for f in same)
    return (f for f in turned if f.shape == code.shape)


def _matrix(weight: Array) -> Array:
    """Return a part of a weight as float64 [rows, columns]."""
    rows = weight.reshape(len(weight), -1)
    steps = [max(1, size // most) for size, most in zip(rows.shape, _MOST, strict=True)]
    return rows[:: steps[0], :: steps[1]].astype(np.float64)


def _fit(code: Array, weight: Array) -> tuple[float, float]:
    """Return the deviation of codes from the nearest multiple of a weight, and the correlation.

    The multiple has a factor per row and per column, and one offset, the zero point.
    """
    inside = _inside(code)
    weight = weight * inside
    offset = float(np.median(code)) if code.min() >= 0 else 0.0
    columns = np.ones(weight.shape[1])
    centred, fitted = code, np.zeros_like(code)
    for _ in range(_ROUNDS):
        centred = (code - offset) * inside
        rows = _factors(centred, weight * columns, 1)
        columns = _factors(centred, weight * rows[:, None], 0)
        fitted = weight * rows[:, None] * columns
        offset += float((centred - fitted)[inside].mean()) if code.min() >= 0 else 0.0
    centred = (code - offset) * inside
    size = np.linalg.norm(centred) * np.linalg.norm(fitted)
    like = float((centred * fitted).sum() / size) if size else 0.0
    return float(np.sqrt(np.square(centred - fitted)[inside].mean())), like


def _inside(code: Array) -> Array:
    """Return which codes are neither the least nor the largest: these stand for any weight beyond.

    Of codes of few bits, which are mostly ends, all.
    """
    inside: Array = (code > code.min()) & (code < code.max())
    return inside if 2 * inside.sum() > inside.size else np.ones_like(inside)


def _factors(code: Array, weight: Array, axis: int) -> Array:
    """Return the least-squares factor of each row or column."""
    squares = np.square(weight).sum(axis)
    factors: Array = (code * weight).sum(axis) / np.where(squares > 0, squares, 1.0)
    return factors
