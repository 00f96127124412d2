"""Operators without a row, by name: those that only move values, and those whose work is unknown.

A name is that of a plan: a key of the table, an ATen name ("split.Tensor"), that of another torch
library ("torchvision::roi_align"), or the ONNX types of a part kept from a file ("Shape+Gather").
"""

from __future__ import annotations

import re

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


def is_move(name: str) -> bool:
    """Return whether an operator only moves, selects or makes values, with nothing to compute."""
    if "+" in name:
        return all(map(is_move, name.split("+")))
    return name in _MOVES or name.partition(".")[0] in _MOVES


def has_formula(name: str) -> bool:
    """Return whether the work of an ATen operator without a row is known: it has no products."""
    return _UNKNOWN.match(name) is None
