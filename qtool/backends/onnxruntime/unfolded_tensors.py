"""Small ONNX files whose tensors unfold to more memory than a network of that size needs.

ONNX Runtime computes constants when it loads a file: a Range, an Expand or Concats that double
take all memory of the machine, and no run option limits it. So the sizes are inferred before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

SMALL = 1 << 20
"""Bytes of a file up to which it is looked at: inference takes milliseconds then."""

LIMIT = 1 << 30
"""Bytes that a tensor of a small file may have."""

_PER_INPUT = 256
"""The same as a multiple of the inputs: a small network on large images has large tensors."""

_ELEMENT = 4  # bytes, where the type is not known


def unfolded_tensor(path: Path) -> tuple[str, int] | None:
    """Return the name and the bytes of the largest tensor of a small file, if it is too large.

    Dynamic dimensions count as 1: how large a batch is, its user decides. A file with weights in
    other files is not small. Sizes that only a run tells, of a Loop for instance, are not counted.
    """
    try:
        if path.stat().st_size > SMALL:
            return None
        model = onnx.load_model_from_string(path.read_bytes())
        if any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer):
            return None
        graph = shape_inference.infer_shapes(model).graph
    except Exception:  # noqa: BLE001  # whoever reads the file next says what is wrong with it
        return None
    sizes = dict(_inferred(graph)) | dict(_generated(graph))
    name, size = max(sizes.items(), key=lambda pair: pair[1], default=("", 0))
    inputs = sum(size for _, size in _described(graph.input))
    return (name, size) if size > max(LIMIT, _PER_INPUT * min(inputs, LIMIT)) else None


def _inferred(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    yield from _described(graph.value_info)
    for node in graph.node:
        for attribute in node.attribute:
            yield from _inferred(attribute.g)


def _described(values: Iterable[onnx.ValueInfoProto]) -> Iterator[tuple[str, int]]:
    for value in values:
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            dims = [d.dim_value or 1 for d in tensor.shape.dim]
            try:
                each = helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
            except KeyError:
                each = _ELEMENT
            yield value.name, prod(dims) * each


def _generated(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Yield the results of Ranges of constants, whose length is not inferred."""
    stored = {t.name: t for t in graph.initializer if t.ByteSize() < 100}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[:1] and node.attribute[0].HasField("t"):
            stored[node.output[0]] = node.attribute[0].t
    for node in graph.node:
        if node.op_type == "Range" and all(name in stored for name in node.input):
            start, limit, step = (
                float(np.ravel(numpy_helper.to_array(stored[name]))[0]) for name in node.input
            )
            yield node.output[0], int(max(0.0, (limit - start) / step) if step else 0) * _ELEMENT
