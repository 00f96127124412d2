"""Compares a file as qtool computes it with ONNX Runtime, on a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from qtool.backends.onnx.subgraph import tensor_of
from qtool.core.errors import CaptureError
from qtool.core.graph.finite_outputs import NOT_FINITE
from qtool.core.graph.float_tolerance import (
    NOISE_FACTOR,
    distance,
    dtype_tolerance,
    last_bit_perturbation,
)
from qtool.frontends.onnx.node_calls import Array
from qtool.frontends.onnx.onnx_module import OnnxModule
from qtool.frontends.onnx.runtime_values import run_file

_APPROXIMATED = frozenset(
    [
        *("Sigmoid", "Softmax", "Tanh", "Erf", "Gelu", "Mish", "Swish"),
        *(f"com.microsoft.{name}" for name in ("Gelu", "FastGelu", "BiasGelu", "QuickGelu")),
    ]
)
_ROUNDED = 1e-6
"""Absolute error of ONNX Runtime's polynomials for these, also for tiny results: its Sigmoid
returns 1e-8 for 1e-35."""


def compare_with_runtime(
    model: OnnxModule,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    computed: Mapping[str, Any],
) -> None:
    """Compare outputs; if they differ, compare each operator on ONNX Runtime's own inputs to it.

    Rounding errors then do not accumulate: an operator that differs by more than float32 rounding
    is computed wrongly. If none does, the outputs differ only by accumulated rounding.

    Args:
        model: the file.
        inputs: name -> input array.
        expected: name -> output array of ONNX Runtime.
        computed: name -> value as qtool computes it, for all values of the file.

    Raises:
        CaptureError: an operator differs; names the first one.
    """
    pairs = [(_tensor(expected[n]), _tensor(computed[n], model.cast.get(n))) for n in model.outputs]
    if all(distance(a, b) <= dtype_tolerance(a) for a, b in pairs):
        return
    values: dict[str, Any] = {
        "": None,
        **model.constants,
        **inputs,
        **run_file(model.model, inputs, True),
    }
    reference = {n: _tensor(v) if n not in model.constants and n else v for n, v in values.items()}
    for index, node in enumerate(model.nodes):
        if index in model.fallback or not all(n in reference for n in node.inputs):
            continue
        arguments = _with_sizes(node.inputs, reference, computed)
        results = model.run_node(index, arguments)
        for place, (name, result) in enumerate(zip(node.outputs, results, strict=False)):
            if name not in reference:
                continue
            expect, actual = reference[name], _tensor(result, model.cast.get(name))
            error = distance(expect, actual)
            if error > dtype_tolerance(expect):
                if node.key in _APPROXIMATED and _is_near(actual, expect, arguments):
                    continue
                if _is_noise(model, index, arguments, place, expect):
                    continue
                if _overflows(expect, actual, arguments):
                    raise CaptureError(
                        f"{node.label} ({node.key}) overflows float32 on the first batch, and what "
                        "comes of it differs by runtime",
                        *NOT_FINITE,
                    )
                by = "in type or shape" if error == float("inf") else f"by {error:.2g} of its range"
                raise CaptureError(
                    f"qtool computes {node.label} ({node.key}) differently than ONNX Runtime: the "
                    f"result differs {by}; this is a bug in qtool, please report it"
                )


def _overflows(expected: torch.Tensor, actual: torch.Tensor, inputs: Mapping[str, Any]) -> bool:
    """Return whether a result of finite inputs is NaN or Inf for ONNX Runtime, or for qtool only
    where products of the inputs may be so large."""
    tensors = [v.detach() for v in inputs.values() if isinstance(v, torch.Tensor)]
    floats = [v for v in tensors if v.is_floating_point() and v.numel()]
    if not expected.is_floating_point() or not all(bool(v.isfinite().all()) for v in floats):
        return False
    large = any(float(v.abs().max()) > torch.finfo(v.dtype).max ** 0.5 for v in floats)
    return not bool(expected.isfinite().all()) or (large and not bool(actual.isfinite().all()))


def _is_near(actual: torch.Tensor, expected: torch.Tensor, inputs: Mapping[str, Any]) -> bool:
    tensors = [v for v in inputs.values() if isinstance(v, torch.Tensor) and v.numel()]
    largest = max([1.0, *(float(v.abs().max()) for v in tensors)])  # x * sigmoid(x)
    return actual.shape == expected.shape and bool(
        ((actual - expected).abs() <= _ROUNDED * largest).all()
    )


def _is_noise(
    model: OnnxModule, index: int, arguments: Mapping[str, Any], place: int, expected: torch.Tensor
) -> bool:
    """Return whether changing the last bits of the inputs changes the result by a similar amount.

    A norm of equal values, for instance, divides rounding errors by its epsilon.
    """
    perturb = last_bit_perturbation()
    other = {n: perturb(v) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    plain, perturbed = (_tensor(model.run_node(index, v)[place]) for v in (arguments, other))
    if (
        plain.shape != expected.shape
        or plain.dtype != expected.dtype
        or not plain.is_floating_point()
    ):
        return False
    noise = float((plain - perturbed).abs().max())
    return float((plain - expected).abs().max()) <= NOISE_FACTOR * noise


def _tensor(value: Any, cast: torch.dtype | None = None) -> torch.Tensor:
    """Return a value as a tensor; `cast` is the type that the file casts sizes to."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    array = np.asarray(value)
    if array.dtype != object:
        return tensor_of(array)
    whole = all(isinstance(v, int) for v in array.ravel())
    sizes = tensor_of(array.astype(np.int64 if whole else np.float32))
    return sizes if cast is None else sizes.to(cast)


def _with_sizes(
    names: tuple[str, ...], reference: Mapping[str, Any], computed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ONNX Runtime's tensors, but qtool's own sizes, which rules need as numbers."""
    sizes = {n: computed[n] for n in names if isinstance(computed.get(n), np.ndarray)}
    return {**{n: reference[n] for n in names}, **sizes}
