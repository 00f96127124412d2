"""The inputs of a self-test: their sizes and ranges, from the file and from a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qtool.backends.onnx.graph import Value
from qtool.backends.onnx.qdq_tensors import QdqTensors
from qtool.backends.onnx.reading import OnnxModel, name_of
from qtool.backends.onnx.self_test_format import InputSpec, SelfTest
from qtool.backends.onnxruntime.self_test.input_generator import generate
from qtool.core.affine import Affine
from qtool.core.errors import DataError, VerificationError
from qtool.core.types import Array

SAMPLES, _MORE_SAMPLES = 4, 16
_SMALL = 1 << 27  # MACs of a sample
_CODE_RANGE = 127
_MOST_SPAN = 2**31


def run_count(specs: Sequence[InputSpec], macs: int) -> int:
    """Return the number of runs for 4 samples in all, 16 for a small model.

    With only 4 samples, a weight that is wrong by one often changes no code of a layer with few
    positions.
    """
    samples = SAMPLES if macs > _SMALL else _MORE_SAMPLES
    size = next((s.shape[0] for s in specs if s.shape), 1)
    return max(1, -(-samples // max(size, 1)))


def input_specs(file: OnnxModel, sample: Sequence[Array]) -> tuple[InputSpec, ...]:
    """Return how to generate the inputs of a file.

    Args:
        file: the file.
        sample: valid inputs in the order of the file's inputs.

    Raises:
        DataError: an input has a type that cannot be generated.
    """
    graph = QdqTensors(file)
    pairs = zip(file.inputs, sample, strict=True)
    return tuple(
        _quantized(file, graph, value, array) or spec_of_sample(array) for value, array in pairs
    )


def _quantized(file: OnnxModel, graph: QdqTensors, value: Value, array: Array) -> InputSpec | None:
    """Return the range of an input's codes and a little more, so that it saturates."""
    for node in file.readers(value):
        if node.op_type == "QuantizeLinear":
            params = graph.affine(node)
            if params.axis is None:
                return spec_of_codes(array.shape, params)
    return None


def spec_of_codes(shape: Sequence[int], params: Affine) -> InputSpec:
    """Return the range of codes and a little more."""
    zero, margin = int(params.zero_point), params.qtype.levels // 20
    low, high = (q - zero for q in (params.qtype.qmin, params.qtype.qmax))
    scale = float(np.format_float_positional(np.float32(params.scale), unique=True))
    return InputSpec(tuple(shape), low - margin, high + margin, scale)


def spec_of_sample(array: Array) -> InputSpec:
    """Return the range of the values of a sample.

    Raises:
        DataError: values of this type cannot be generated.
    """
    if array.dtype.kind not in "fiub":
        raise DataError(f"inputs of type {array.dtype} cannot be generated")
    if array.dtype.kind != "f":
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        return InputSpec(array.shape, low, min(high, low + _MOST_SPAN))
    finite = array[np.isfinite(array)].astype(np.float32)
    most = float(np.abs(finite).max(initial=0)) or 1.0
    low = -_CODE_RANGE if (finite < 0).any() else 0
    scale = float(np.format_float_scientific(np.float32(most / _CODE_RANGE), unique=True))
    return InputSpec(array.shape, low, _CODE_RANGE, scale)


def generate_inputs(file: OnnxModel, test: SelfTest) -> Iterator[list[Array]]:
    """Iterate over the inputs of each run.

    Raises:
        VerificationError: the file has other inputs than the test.
    """
    if len(file.inputs) != len(test.inputs):
        raise VerificationError(
            f"the file has {len(file.inputs)} inputs, its self-test {len(test.inputs)}"
        )
    for number in range(test.runs):
        yield [
            generate(name_of(value), spec, _dtype(value), number)
            for value, spec in zip(file.inputs, test.inputs, strict=True)
        ]


def _dtype(value: Value) -> np.dtype[Any]:
    if value.dtype is None:
        raise DataError(f"input '{value.name}' has no type")
    return value.dtype
