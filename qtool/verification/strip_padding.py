"""Outputs without the values at padded positions.

Nothing reads what a text model computes at padded positions, and quantization may change it
arbitrarily; it would distort every ratio over outputs with a value for each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtool.core.types import Array
from qtool.core.value_names import MASK

Sizes = Sequence[int | str]
"""The shape of a tensor, with names for dynamic sizes."""


@dataclass(frozen=True)
class Padding:
    """The token axes of the outputs of a model.

    Attributes:
        mask: index of the attention mask among the inputs; None if there is none.
        axes: axes along which each output has a value for each token.
    """

    mask: int | None
    axes: tuple[tuple[int, ...], ...]

    @classmethod
    def of_session(cls, session: Any) -> Padding:
        """Return the token axes of a file, given its session."""
        inputs = {i.name: i.shape for i in session.inputs}
        return cls.of(inputs, [o.shape for o in session.outputs])

    @classmethod
    def of(cls, inputs: Mapping[str, Sizes], shapes: Sequence[Sizes]) -> Padding:
        """Return the token axes of a model, given the shapes of its inputs and outputs."""
        mask = inputs.get(MASK, ())
        if len(mask) != 2:
            return cls(None, tuple(() for _ in shapes))
        return cls(list(inputs).index(MASK), tuple(_token_axes(shape, *mask) for shape in shapes))

    def strip(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
        """Return the outputs of a call with zeros at padded positions."""
        if self.mask is None or (inputs[self.mask] != 0).all():
            return list(outputs)
        mask, results = inputs[self.mask] != 0, []
        for output, axes in zip(outputs, self.axes, strict=True):
            for axis in axes:
                shape = [1] * output.ndim
                shape[0], shape[axis] = mask.shape
                if output.shape[0] == shape[0] and output.shape[axis] == shape[axis]:
                    output = np.where(mask.reshape(shape), output, output.dtype.type(0))
            results.append(output)
        return results


def _token_axes(shape: Sizes, samples: int | str, length: int | str) -> tuple[int, ...]:
    """Return the axes of tokens.

    A dynamic length is found by its name. A fixed one only identifies the second axis, in outputs
    with more than one value per token.
    """
    if not shape or shape[0] != samples:
        return ()
    if isinstance(length, str):
        return tuple(axis for axis, size in enumerate(shape) if axis and size == length)
    return (1,) if len(shape) > 2 and shape[1] == length else ()
