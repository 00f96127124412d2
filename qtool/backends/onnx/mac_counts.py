"""Multiply-accumulates of nodes in ONNX files of any tool, with the formulas of `mac_formulas`.

Operators with subgraphs are counted in `qtool.backends.onnx.graph_macs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from qtool.backends.onnx.operator_rows import ON_CODES
from qtool.core import mac_formulas
from qtool.core.mac_formulas import Sizes

Inputs = Sequence[Sizes | None]
Attributes = Mapping[str, Any]
_Count = Callable[[Inputs, Sizes | None, Attributes], int]


def onnx_macs(
    kind: str, inputs: Inputs, result: Sizes | None, attributes: Attributes, domain: str = ""
) -> int | None:
    """Return the MACs of a node; None if they are not known.

    Args:
        kind: operator type.
        inputs: sizes of its inputs; None: unknown or omitted.
        result: sizes of its first output.
        attributes: name -> value.
        domain: domain of the operator.
    """
    if domain not in DOMAINS or kind in _UNKNOWN or (domain == CONTRIB and not _counted(kind)):
        return None
    formula = MAC_FORMULAS.get(kind)
    try:
        return 0 if formula is None else formula(inputs, result, attributes)
    except (LookupError, TypeError, ValueError):  # sizes are missing or contradict each other
        return None


def _counted(kind: str) -> bool:
    """Return whether an operator of the runtime has a formula, or no products that count."""
    if _PRODUCTS_INSIDE.search(kind):
        return kind in MAC_FORMULAS and kind != "Attention"  # not the Attention of ONNX
    return _ELEMENTWISE.search(kind) is not None


def _layer(weight: int) -> _Count:
    return lambda inputs, result, _: mac_formulas.of_layer(_known(result), _known(inputs[weight]))


def _transposed(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    return mac_formulas.of_transposed(_known(inputs[0]), _known(inputs[1]))


def _product(weight: int) -> _Count:
    """Return the formula of a matrix product. ONNX Runtime's operators have no shape inference, so
    the rows of an unknown result are those of the first factor."""

    def of(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
        second = _known(inputs[weight])
        if attributes.get("transB", 0):
            second = (*second[:-2], second[-1], second[-2])
        return mac_formulas.of_product(result or [*_rows(inputs[0]), second[-1]], second)

    return of


def _in_bits(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    """MACs of MatMulNBits, whose weight has N rows and K columns."""
    second = (attributes["K"], attributes["N"])
    return mac_formulas.of_product([*_rows(inputs[0]), second[1]], second)


def _experts(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    """MACs of QMoE, each token in its experts. Weights: [experts, outputs, bytes]."""
    rows = prod(_rows(inputs[0])) * attributes["k"]
    weights = sum(prod(_known(inputs[at])[1:]) for at in (2, 5))
    return int(rows * weights * 8 // attributes.get("expert_weight_bits", 4))


def _einsum(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    return mac_formulas.of_einsum(attributes["equation"], [_known(i) for i in inputs])


def _recurrent(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    x, *weights = map(_known, inputs[:3])
    return mac_formulas.of_recurrent(x[:2], *weights)


def _attention(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    """MACs of Attention of ONNX: queries times keys, weights times values, those of a cache too.

    Inputs: query, key, value, mask, past key, past value; with heads in dimension 1 of rank 4, or
    in the last of rank 3.
    """
    query, key, value = map(_known, inputs[:3])
    past = inputs[4] if len(inputs) > 4 else None
    steps = key[-2] + (past[-2] if past is not None else 0)
    if len(query) == 4:
        return prod(query[:-1]) * steps * (query[-1] + value[-1])
    heads, own = int(attributes["q_num_heads"]), int(attributes["kv_num_heads"])
    return prod(query[:-1]) * heads * steps * (query[-1] // heads + value[-1] // own)


def _grouped_attention(inputs: Inputs, result: Sizes | None, attributes: Attributes) -> int:
    """MACs of GroupQueryAttention: query, key, value, past key [samples, heads, tokens, width]; or
    all three in the first. The cache may be a buffer that is longer than its texts."""
    query, past = _known(inputs[0]), inputs[3] if len(inputs) > 3 else None
    heads, own = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    packed = len(inputs) < 2 or inputs[1] is None
    width = query[-1] // (heads + 2 * own if packed else heads)
    steps = query[-2] + (past[-2] if past is not None else 0)
    return int(2 * prod(query[:-1]) * heads * steps * width)


def _rows(x: Sizes | None) -> Sizes:
    """Return the sizes of the rows of the first factor."""
    return _known(x)[:-1]


def _known(sizes: Sizes | None) -> Sizes:
    if sizes is None:
        raise ValueError("not known")
    return sizes


CONTRIB = "com.microsoft"
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", CONTRIB)
"""Those of ONNX and of the runtime."""

_UNKNOWN = frozenset(("DFT", "STFT", "Det", "SVMClassifier", "SVMRegressor"))
_PRODUCTS_INSIDE = re.compile("Conv|MatMul|Gemm|Attention|LSTM|MoE")
_ELEMENTWISE = re.compile(  # in names of other operators of the runtime that only move or scale
    "Add|Bias|Concat|Crop|Dequantize|Expand|Gather|Gelu|Inverse|LayerNorm|Mul|Pad|Pool|Quantize|"
    "Range|Relu|Reorder|Rotary|Sigmoid|Silu|Softmax|Swish|Transpose|Trilu|Unique|Where"
)

_SECOND = (
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "ConvInteger", "MatMulInteger", "DeformConv"),
    *("MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
    *("FusedConv", "NhwcFusedConv", "FusedMatMul", "FusedGemm"),
)
WEIGHT_INPUT: Mapping[str, int] = {
    **dict.fromkeys(_SECOND, 1),
    **{
        on_codes: 3 for on_codes, kind in ON_CODES.items() if kind in _SECOND
    },  # behind x, scale, zero
}
"""Operator type -> position of its weight."""

_CONVOLUTIONS = [k for k in WEIGHT_INPUT if "Conv" in k and k != "ConvTranspose"]
_PRODUCTS = [kind for kind in WEIGHT_INPUT if "Conv" not in kind]
MAC_FORMULAS: Mapping[str, _Count] = {
    **{kind: _layer(WEIGHT_INPUT[kind]) for kind in _CONVOLUTIONS},
    "ConvTranspose": _transposed,
    **{kind: _product(WEIGHT_INPUT[kind]) for kind in _PRODUCTS},
    "MatMulNBits": _in_bits,
    "QMoE": _experts,
    "Einsum": _einsum,
    "Attention": _attention,
    "GroupQueryAttention": _grouped_attention,
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), _recurrent),
}
"""Operator type -> formula of its MACs."""
