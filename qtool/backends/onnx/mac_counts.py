"""Multiply-accumulates of nodes in ONNX files of any tool, with the formulas of `mac_counts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qtool.core.ops import mac_counts
from qtool.core.ops.mac_counts import Sizes

Inputs = Sequence[Sizes | None]
Attributes = Mapping[str, Any]
_Count = Callable[[Inputs, Sizes | None, Attributes], int]


def onnx_macs(kind: str, inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    """Return the MACs of a node; 0 for other operators and unknown sizes.

    Args:
        kind: operator type.
        inputs: sizes of its inputs; None: unknown or omitted.
        result: sizes of its first output.
        attributes: by name.
    """
    formula = MAC_FORMULAS.get(kind)
    try:
        return 0 if formula is None else formula(inputs, result, attributes)
    except (LookupError, TypeError, ValueError):  # sizes are missing or contradict each other
        return 0


def _layer(weight: int) -> _Count:
    return lambda inputs, result, _: mac_counts.of_layer(_known(result), _known(inputs[weight]))


def _transposed(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    return mac_counts.of_transposed(_known(inputs[0]), _known(inputs[1]))


def _product(weight: int) -> _Count:
    """Return the formula of a matrix product. ONNX Runtime's operators have no shape inference, so
    the rows of an unknown result are those of the first factor."""

    def of(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
        second = _known(inputs[weight])
        if attributes.get("transB", 0):
            second = second[::-1]
        return mac_counts.of_product(result or [*_rows(inputs[0]), second[-1]], second)

    return of


def _in_bits(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    """MACs of MatMulNBits, whose weight has N rows and K columns."""
    second = (attributes["K"], attributes["N"])
    return mac_counts.of_product([*_rows(inputs[0]), second[1]], second)


def _einsum(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    return mac_counts.of_einsum(attributes["equation"], [_known(i) for i in inputs])


def _recurrent(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    x, *weights = map(_known, inputs[:3])
    return mac_counts.of_recurrent(x[:2], *weights)


def _rows(x: Sizes | None) -> Sizes:
    """Return the sizes of the rows of the first factor; one row if unknown."""
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
"""Operator type -> position of its weight."""

_PRODUCTS = [kind for kind in WEIGHT_INPUT if "Conv" not in kind]
MAC_FORMULAS: Mapping[str, _Count] = {
    **{kind: _layer(WEIGHT_INPUT[kind]) for kind in ("Conv", "ConvInteger", "QLinearConv")},
    "ConvTranspose": _transposed,
    **{kind: _product(WEIGHT_INPUT[kind]) for kind in _PRODUCTS},
    "MatMulNBits": _in_bits,
    "Einsum": _einsum,
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), _recurrent),
}
"""Operator type -> formula of its MACs."""
