"""The size of the weights of an ONNX file, without them."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from pathlib import Path

import onnx


def float_bytes(path: Path) -> int:
    """Return the size of the weights of a file in float32; 0 for a file that is no model."""
    with suppress(Exception):  # it is refused where it is read
        graph = onnx.load(path, load_external_data=False).graph
        return sum(4 * prod(tensor.dims) for tensor in graph.initializer)
    return 0
