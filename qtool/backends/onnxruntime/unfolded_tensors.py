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

_RUNS = 48
"""Runs of a Loop whose sizes are inferred: what doubles is past any limit then."""

_ELEMENT = 4  # bytes, where the type is not known


def unfolded_tensor(path: Path) -> tuple[str, int] | None:
    """Return the name and the bytes of the largest tensor of a small file, if it is too large.

    Dynamic dimensions count as 1: how large a batch is, its user decides. A file with weights in
    other files is not small. Of a Loop whose length is stored the states and lists are counted;
    other sizes that only a run tells are not.
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
    sizes = dict(_inferred(graph)) | dict(_generated(graph)) | dict(_looped(graph))
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
            try:
                each = helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
            except KeyError:
                each = _ELEMENT
            yield value.name, prod(_shape(value)) * each


def _generated(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Yield the results of Ranges of constants, whose length is not inferred."""
    stored = _stored(graph)
    for node in graph.node:
        if node.op_type == "Range" and all(name in stored for name in node.input):
            start, limit, step = (
                float(np.ravel(numpy_helper.to_array(stored[name]))[0]) for name in node.input
            )
            yield node.output[0], int(max(0.0, (limit - start) / step) if step else 0) * _ELEMENT


def _stored(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the small constants of a graph by their names."""
    stored = {t.name: t for t in graph.initializer if t.ByteSize() < 100}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[:1] and node.attribute[0].HasField("t"):
            stored[node.output[0]] = node.attribute[0].t
    return stored


def _looped(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Yield the results of Loops of a stored length: what their states grow to, and their lists."""
    stored = _stored(graph)
    own = (helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in graph.initializer)
    known = {value.name: value for value in (*own, *graph.input, *graph.value_info)}
    for node in graph.node:
        if node.op_type == "Loop" and node.input[0] in stored:
            times = int(np.ravel(numpy_helper.to_array(stored[node.input[0]]))[0])
            states = [_shape(known[name]) if name in known else [1] for name in node.input[2:]]
            ends = _after(node.attribute[0].g, times, states, list(known.values()))
            yield from ((n, size * _ELEMENT) for n, size in zip(node.output, ends, strict=True))


def _after(
    body: onnx.GraphProto, times: int, states: list[list[int]], outer: list[onnx.ValueInfoProto]
) -> list[int]:
    """Return the elements of the results of a body that runs a number of times.

    Sizes grow by a factor in the first runs, or from then on by a number.
    """
    own = {name for node in body.node for name in node.output}
    own |= {value.name for value in (*body.input, *body.initializer)}
    last, before, count = [prod(state) for state in states], [0] * len(body.output), len(states)
    for _ in range(min(times, _RUNS)):
        run = onnx.GraphProto()
        run.CopyFrom(body)
        for value, shape in zip(run.input[2:], states, strict=True):
            kind = value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
        for value in run.output:
            value.type.tensor_type.ClearField("shape")
        run.input.extend(value for value in outer if value.name not in own)
        results = shape_inference.infer_shapes(helper.make_model(run)).graph.output[1:]
        before, states = last, [_shape(value) for value in results[:count]]
        last = [prod(_shape(value)) for value in results]
    rest = max(0, times - _RUNS)
    grown = [a + rest * max(0, a - b) for a, b in zip(last[:count], before[:count], strict=True)]
    return [*grown, *(times * size for size in last[count:])]


def _shape(value: onnx.ValueInfoProto) -> list[int]:
    """Return the sizes of a tensor; dynamic ones count as 1."""
    return [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
