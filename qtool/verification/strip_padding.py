"""Outputs without what stands on padding.

What a model of texts gives for padding is read by nobody, and quantized it may be anything: it
would count in every ratio over outputs that have a value for each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtool.core import graph as G
from qtool.core.data import MASK
from qtool.core.graph import FloatGraph
from qtool.core.types import Array

Sizes = Sequence[int | str]
"""Of a tensor: names for those that vary."""


@dataclass(frozen=True)
class Padding:
    """Which axes of which outputs tokens lie along.

    mask: position of the mask among the inputs; None where there is none.
    axes: for each output those along which it has a value for each token.
    """

    mask: int | None
    axes: tuple[tuple[int, ...], ...]

    @classmethod
    def of_session(cls, session: Any) -> Padding:
        """Of a file that the runtime has opened."""
        inputs = {i.name: i.shape for i in session.get_inputs()}
        return cls._of(inputs, [o.shape for o in session.get_outputs()])

    @classmethod
    def of_graph(cls, graph: FloatGraph) -> Padding:
        nodes = G.output_nodes(graph.graph)
        sizes = [[s if isinstance(s, int) else str(s) for s in G.shape(n)] for n in nodes]
        shapes = [[graph.dims.get(str(s), s) for s in each] for each in sizes]
        return cls._of({i.name: i.shape for i in graph.inputs}, shapes)

    @classmethod
    def _of(cls, inputs: Mapping[str, Sizes], shapes: Sequence[Sizes]) -> Padding:
        given = inputs.get(MASK, ())
        if len(given) != 2:
            return cls(None, tuple(() for _ in shapes))
        return cls(list(inputs).index(MASK), tuple(_along(shape, *given) for shape in shapes))

    def strip(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
        """The outputs of a call, with zeros for padding."""
        if self.mask is None or (inputs[self.mask] != 0).all():
            return list(outputs)
        mask, found = inputs[self.mask] != 0, []
        for output, axes in zip(outputs, self.axes, strict=True):
            for axis in axes:
                shape = [1] * output.ndim
                shape[0], shape[axis] = mask.shape
                if output.shape[0] == shape[0] and output.shape[axis] == shape[axis]:
                    output = np.where(mask.reshape(shape), output, output.dtype.type(0))
            found.append(output)
        return found


def _along(shape: Sizes, samples: int | str, length: int | str) -> tuple[int, ...]:
    """The axes of tokens. A length that varies has a name; one that is fixed tells of the second
    axis alone, in outputs with more than one value for a token."""
    if not shape or shape[0] != samples:
        return ()
    if isinstance(length, str):
        return tuple(axis for axis, size in enumerate(shape) if axis and size == length)
    return (1,) if len(shape) > 2 and shape[1] == length else ()
