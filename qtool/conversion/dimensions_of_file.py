"""Fixes the dynamic dimensions at which a file differs from the model that it was written from."""

from __future__ import annotations

from dataclasses import replace

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import VerificationError
from qtool.core.log import log_warning
from qtool.verification.verification_result import SizeCheck


class UnfollowedSizesError(VerificationError):
    """A file differs from its model at other sizes of its dynamic dimensions.

    Attributes:
        check: what differs, and of which dimensions.
    """

    def __init__(self, check: SizeCheck) -> None:
        super().__init__(f"the exported model differs from the model at {check}")
        self.check = check


def with_fixed_dimensions(
    graph: G.FloatGraph, sample: Batch, check: SizeCheck
) -> tuple[G.FloatGraph, tuple[str, ...]]:
    """Return the graph with the dimensions of a check fixed to the sizes of a sample.

    Args:
        graph: the graph of the file.
        sample: bound to it.
        check: result of the file, which differs from the model's.

    Returns:
        The graph, and a sentence for each dimension, which is logged, too.
    """
    sizes: dict[str, int] = {}
    inputs, sentences = [], []
    for spec, tensor in zip(graph.inputs, graph.tensors_of(sample), strict=True):
        shape = list(spec.shape)
        for axis, name in enumerate(spec.shape):
            if isinstance(name, str) and name in check.dimensions:
                shape[axis] = sizes[name] = tensor.shape[axis]
                sentences.append(
                    f"dimension {axis} ({name}) of input '{spec.name}' is fixed to "
                    f"{tensor.shape[axis]} in the file: at {check}"
                )
        inputs.append(replace(spec, shape=tuple(shape)))
    for sentence in sentences:
        log_warning(sentence)
    dims = {symbol: str(sizes.get(name, name)) for symbol, name in graph.dims.items()}
    return replace(graph, inputs=tuple(inputs), dims=dims), tuple(sentences)
