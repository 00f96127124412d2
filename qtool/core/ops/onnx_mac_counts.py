"""Multiply-accumulates of nodes in ONNX files, of any tool: the formulas of `count`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qtool.core.ops import mac_counts
from qtool.core.ops.mac_counts import Sizes

Inputs = Sequence[Sizes | None]
Attributes = Mapping[str, Any]
_Count = Callable[[Inputs, Sizes | None, Attributes], int]


def onnx_macs(kind: str, inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    """MACs of a node for the sizes given; 0 for other operators, and where sizes are not known.

    Args:
        kind: the operator.
        inputs: the sizes of its inputs; None: not known, or left out. result: of its first output.
    """
    found = MAC_FORMULAS.get(kind)
    try:
        return 0 if found is None else found(inputs, result, attributes)
    except (LookupError, TypeError, ValueError):  # left out, not known, or contradicting each other
        return 0


def _layer(weight: int) -> _Count:
    return lambda inputs, result, _: mac_counts.of_layer(_known(result), _known(inputs[weight]))


def _transposed(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    return mac_counts.of_transposed(_known(inputs[0]), _known(inputs[1]))


def _product(weight: int) -> _Count:
    """Of matrices; the runtime's own operators have no inference of shapes, so that the result's
    rows are those of the first."""

    def of(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
        second = _known(inputs[weight])
        if attributes.get("transB", 0):
            second = second[::-1]
        return mac_counts.of_product(result or [*_rows(inputs[0]), second[-1]], second)

    return of


def _in_bits(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    """A product with a weight of N rows and K columns in few bits."""
    second = (attributes["K"], attributes["N"])
    return mac_counts.of_product([*_rows(inputs[0]), second[1]], second)


def _einsum(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    return mac_counts.of_einsum(attributes["equation"], [_known(i) for i in inputs])


def _recurrent(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    x, *weights = map(_known, inputs[:3])
    return mac_counts.of_recurrent(x[:2], *weights)


def _rows(x: Sizes | None) -> Sizes:
    """Of the first factor; one where nothing is known."""
    return (1,) if x is None else x[:-1]


def _known(sizes: Sizes | None) -> Sizes:
    if sizes is None:
        raise ValueError("not known")
    return sizes


WEIGHT_INPUT: Mapping[str, int] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul", "ConvInteger", "MatMulInteger"), 1),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul"), 1),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), 3),
}
"""Operators with a weight -> the input where it stands."""

_PRODUCTS = [kind for kind in WEIGHT_INPUT if "Conv" not in kind]
MAC_FORMULAS: Mapping[str, _Count] = {
    **{kind: _layer(WEIGHT_INPUT[kind]) for kind in ("Conv", "ConvInteger", "QLinearConv")},
    "ConvTranspose": _transposed,
    **{kind: _product(WEIGHT_INPUT[kind]) for kind in _PRODUCTS},
    "MatMulNBits": _in_bits,
    "Einsum": _einsum,
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), _recurrent),
}
"""Operators with MACs -> how they are counted."""
