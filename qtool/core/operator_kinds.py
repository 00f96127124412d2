"""Operators without a row, by name: those that only move values, those whose work is unknown, and
those whose results jump.

A name is that of a plan: a key of the table, an ATen name ("split.Tensor"), that of another torch
library ("torchvision::roi_align"), or the ONNX types of a part kept from a file ("Shape+Gather").
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TypeVar

_T = TypeVar("_T")

_KEYS = "pass pad embedding"
_ATEN = """
    _assert_tensor_metadata _to_copy alias alias_copy arange as_strided as_strided_copy
    broadcast_to cat chunk clone constant_pad_nd contiguous copy detach detach_copy diagonal
    diagonal_copy dropout empty expand_as expand_copy eye fill flip full full_like gather
    im2col index index_copy index_fill index_put index_select lift_fresh_copy masked_fill
    masked_select movedim narrow new_full new_ones new_zeros ones ones_like pad permute_copy
    pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d repeat_interleave
    replication_pad1d replication_pad2d replication_pad3d roll rot90 scalar_tensor scatter
    select_copy select_scatter slice_copy slice_scatter sort split split_copy split_with_sizes
    split_with_sizes_copy squeeze_copy stack t take take_along_dim to topk tril triu type_as
    unbind unbind_copy unfold unfold_copy unsqueeze_copy view view_as where zeros zeros_like
"""
_ONNX = """
    Cast CastLike Compress Concat ConcatFromSequence Constant ConstantOfShape DepthToSpace
    DequantizeLinear Expand EyeLike Flatten Gather GatherElements GatherND Identity NonZero
    OneHot Pad QuantizeLinear Range Reshape ReverseSequence Scatter ScatterElements ScatterND
    SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
    Shape Size Slice SpaceToDepth Split SplitToSequence Squeeze Tile TopK Transpose Trilu
    Unique Unsqueeze Where
"""
_MOVES = frozenset(f"{_KEYS} {_ATEN} {_ONNX}".split())
_UNKNOWN = re.compile(  # of ATen: transforms, decompositions, products in forms without a row
    r"(_?fft_|_?stft|istft|_?linalg_|_?cdist|_?convolution|conv\d|_?trilinear|bilinear\.|lstm|gru"
    r"|addmm|addmv|addbmm|mv\.|dot\.|vdot\.|inner|tensordot|_scaled_dot_product|_native_multi_head)"
)

_ROUND = """
    cast ceil dynamicquantizelinear dynamicquantizematmul floor matmulintegertofloat matmulnbits mod
    round sign
"""
_COMPARE = """
    argmax argmin equal greater greaterequal greaterorequal less lessequal lessorequal
    nonmaxsuppression nonzero notequal topk
"""
_JUMPS = frozenset(f"{_ROUND} {_COMPARE}".split())
"""Types of ONNX and of TFLite in small letters: of operators that round inside, or whose results
jump when the last bit of an input changes."""
_DEQUANTIZE = ("dequantizelinear", "dequantize")


def is_move(name: str) -> bool:
    """Return whether an operator only moves, selects or makes values, with nothing to compute."""
    if "+" in name:
        return all(map(is_move, name.split("+")))
    return name in _MOVES or name.partition(".")[0] in _MOVES


def has_formula(name: str) -> bool:
    """Return whether the work of an ATen operator without a row is known: it has no products."""
    return _UNKNOWN.match(name) is None


def tensors_that_jump(
    operators: Iterable[tuple[str, Collection[_T], Collection[_T]]],
) -> set[_T]:
    """Return the tensors that depend on a discontinuous operator after the last quantization.

    Args:
        operators: (type, inputs, outputs) of each operator of an ONNX or TFLite file, in the order
            in which they run.
    """
    jumping: set[_T] = set()
    for kind, inputs, outputs in operators:
        name = kind.replace("_", "").lower()
        if name in _JUMPS or (name not in _DEQUANTIZE and not jumping.isdisjoint(inputs)):
            jumping.update(outputs)
    return jumping
