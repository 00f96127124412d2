"""The inputs of a self-test: their sizes and ranges, from the file and from a sample."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from qtool.backends.onnx.graph import Value
from qtool.backends.onnx.qdq_tensors import QdqTensors
from qtool.backends.onnx.reading import OnnxModel, name_of
from qtool.backends.onnx.self_test_format import InputSpec, SelfTest
from qtool.core.affine import Affine
from qtool.core.errors import DataError, VerificationError
from qtool.core.types import Array

# Inputs that are identical on every machine: integers from a fixed generator, times a scale.
#
# The generator is SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
# Generators", OOPSLA 2014), computed at any index of its sequence. It is implemented here, so
# that no library version changes it. docs/numerics.md describes it for other programs.


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BLOCKS = (1, 2, 4, 8)
"""Sizes of the blocks of equal values in sample 0, 1, 2, 3, 4 (= 0) and so on."""


def random_words(seed: int, index: Array) -> Array:
    """Return 64 random bits for each index of the sequence of a seed; uint64, shape of `index`."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64
        z = np.uint64(seed) + (index.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
        bits: Array = z ^ (z >> np.uint64(31))
    return bits


def seed_of(name: str) -> int:
    """Return the first 8 bytes of the SHA-256 of a name, little-endian."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def generate(name: str, spec: InputSpec, dtype: np.dtype, run: int) -> Array:
    """Return one input of one run.

    Each value is `scale * (low + word % (high - low + 1))`, computed in float64 and cast to
    `dtype`. Sample i of run r reads the words from (r * samples + i) * (elements of a sample) on.
    In a floating-point input with 3 axes or more, the last two axes consist of blocks of 1, 2, 4 or
    8 equal values in turn: some channels respond to larger patterns only.

    Args:
        name: name of the input; seeds the generator.
        spec: shape and range of the input.
        dtype: dtype of the input.
        run: number of the run, from 0.
    """
    count, rest = (spec.shape[0], spec.shape[1:]) if spec.shape else (1, ())
    index = np.arange(prod(rest), dtype=np.uint64).reshape(rest)
    smooth = dtype.kind == "f" and len(rest) >= 2
    seed, span = seed_of(name), np.uint64(spec.high - spec.low + 1)
    samples = []
    for sample in range(run * count, (run + 1) * count):
        places = _blocks(index, _BLOCKS[sample % len(_BLOCKS)]) if smooth else index
        start = np.uint64(sample * index.size)
        codes = (random_words(seed, places + start) % span).astype(np.int64) + spec.low
        samples.append(codes)
    codes = np.stack(samples) if count else np.zeros(spec.shape, np.int64)
    values = codes * np.float64(spec.scale) if dtype.kind == "f" else codes
    return values.astype(dtype).reshape(spec.shape)


def _blocks(index: Array, size: int) -> Array:
    """Return for each index that of the first element of its block."""
    rows, columns = (np.arange(n) // size * size for n in index.shape[-2:])
    return index[..., rows, :][..., columns]


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
