"""The part of the TFLite schema (version 3) that qtool reads and writes, as data.

A table is a tuple of fields in the order of their slots: (name, type, default). Types are scalars
("int32"), "string", a table, or a vector of one of these in brackets. An empty tuple is a slot that
is deprecated or that qtool does not need. Source: tensorflow/compiler/mlir/lite/schema/schema.fbs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IDENTIFIER = b"TFL3"
VERSION = 3

Field = tuple[()] | tuple[str, str] | tuple[str, str, Any]
Table = tuple[Field, ...]

_ACTIVATION: Field = ("fused_activation_function", "int8")

TABLES: Mapping[str, Table] = {
    "Model": (
        ("version", "uint32"),
        ("operator_codes", "[OperatorCode]"),
        ("subgraphs", "[SubGraph]"),
        ("description", "string"),
        ("buffers", "[Buffer]"),
        (),
        ("metadata", "[Metadata]"),
        ("signature_defs", "[SignatureDef]"),
    ),
    "OperatorCode": (
        ("deprecated_builtin_code", "int8"),
        ("custom_code", "string"),
        ("version", "int32", 1),
        ("builtin_code", "int32"),
    ),
    "SubGraph": (
        ("tensors", "[Tensor]"),
        ("inputs", "[int32]"),
        ("outputs", "[int32]"),
        ("operators", "[Operator]"),
        ("name", "string"),
    ),
    "Tensor": (
        ("shape", "[int32]"),
        ("type", "int8"),
        ("buffer", "uint32"),
        ("name", "string"),
        ("quantization", "QuantizationParameters"),
        ("is_variable", "bool"),
        (),
        ("shape_signature", "[int32]"),
        ("has_rank", "bool"),
    ),
    "Buffer": (("data", "[uint8]"), ("offset", "uint64"), ("size", "uint64")),
    "QuantizationParameters": (
        ("min", "[float32]"),
        ("max", "[float32]"),
        ("scale", "[float32]"),
        ("zero_point", "[int64]"),
        ("details_type", "uint8"),
        (),
        ("quantized_dimension", "int32"),
    ),
    "Operator": (
        ("opcode_index", "uint32"),
        ("inputs", "[int32]"),
        ("outputs", "[int32]"),
        ("builtin_options_type", "uint8"),
        ("builtin_options", "union"),
        ("custom_options", "[uint8]"),
    ),
    "Metadata": (("name", "string"), ("buffer", "uint32")),
    "SignatureDef": (
        ("inputs", "[TensorMap]"),
        ("outputs", "[TensorMap]"),
        ("signature_key", "string"),
        (),
        ("subgraph_index", "uint32"),
    ),
    "TensorMap": (("name", "string"), ("tensor_index", "uint32")),
    "Conv2DOptions": (
        ("padding", "int8"),
        ("stride_w", "int32"),
        ("stride_h", "int32"),
        _ACTIVATION,
        ("dilation_w_factor", "int32", 1),
        ("dilation_h_factor", "int32", 1),
    ),
    "DepthwiseConv2DOptions": (
        ("padding", "int8"),
        ("stride_w", "int32"),
        ("stride_h", "int32"),
        ("depth_multiplier", "int32"),
        _ACTIVATION,
        ("dilation_w_factor", "int32", 1),
        ("dilation_h_factor", "int32", 1),
    ),
    "Pool2DOptions": (
        ("padding", "int8"),
        ("stride_w", "int32"),
        ("stride_h", "int32"),
        ("filter_width", "int32"),
        ("filter_height", "int32"),
        _ACTIVATION,
    ),
    "FullyConnectedOptions": (
        _ACTIVATION,
        ("weights_format", "int8"),
        ("keep_num_dims", "bool"),
        ("asymmetric_quantize_inputs", "bool"),
    ),
    "TransposeConvOptions": (
        ("padding", "int8"),
        ("stride_w", "int32"),
        ("stride_h", "int32"),
        _ACTIVATION,
    ),
    "BatchMatMulOptions": (
        ("adj_x", "bool"),
        ("adj_y", "bool"),
        ("asymmetric_quantize_inputs", "bool"),
    ),
    "AddOptions": (_ACTIVATION, ("pot_scale_int16", "bool", True)),
    "SubOptions": (_ACTIVATION, ("pot_scale_int16", "bool", True)),
    "MulOptions": (_ACTIVATION,),
    "DivOptions": (_ACTIVATION,),
    "ConcatenationOptions": (("axis", "int32"), _ACTIVATION),
    "SoftmaxOptions": (("beta", "float32", 0.0),),
    "LeakyReluOptions": (("alpha", "float32", 0.0),),
    "GeluOptions": (("approximate", "bool"),),
    "ReducerOptions": (("keep_dims", "bool"),),
    "ReshapeOptions": (("new_shape", "[int32]"),),
    "SqueezeOptions": (("squeeze_dims", "[int32]"),),
    "StridedSliceOptions": (
        ("begin_mask", "int32"),
        ("end_mask", "int32"),
        ("ellipsis_mask", "int32"),
        ("new_axis_mask", "int32"),
        ("shrink_axis_mask", "int32"),
        ("offset", "bool"),
    ),
    "SplitOptions": (("num_splits", "int32"),),
    "SplitVOptions": (("num_splits", "int32"),),
    "GatherOptions": (("axis", "int32"), ("batch_dims", "int32")),
    "CastOptions": (("in_data_type", "int8"), ("out_data_type", "int8")),
    "ArgMaxOptions": (("output_type", "int8"),),
    "ArgMinOptions": (("output_type", "int8"),),
    "PackOptions": (("values_count", "int32"), ("axis", "int32")),
    "UnpackOptions": (("num", "int32"), ("axis", "int32")),
    "MirrorPadOptions": (("mode", "int8"),),
    "CumsumOptions": (("exclusive", "bool"), ("reverse", "bool")),
    "ShapeOptions": (("out_type", "int8"),),
    "DepthToSpaceOptions": (("block_size", "int32"),),
    "SpaceToDepthOptions": (("block_size", "int32"),),
    "ResizeBilinearOptions": ((), (), ("align_corners", "bool"), ("half_pixel_centers", "bool")),
    "ResizeNearestNeighborOptions": (("align_corners", "bool"), ("half_pixel_centers", "bool")),
}
"""Table -> its fields. Options without fields are in `OPTIONS` only."""

OPTIONS: Mapping[str, int] = {
    "Conv2DOptions": 1,
    "DepthwiseConv2DOptions": 2,
    "Pool2DOptions": 5,
    "FullyConnectedOptions": 8,
    "SoftmaxOptions": 9,
    "ConcatenationOptions": 10,
    "AddOptions": 11,
    "ResizeBilinearOptions": 15,
    "ReshapeOptions": 17,
    "SpaceToDepthOptions": 19,
    "MulOptions": 21,
    "PadOptions": 22,
    "GatherOptions": 23,
    "TransposeOptions": 26,
    "ReducerOptions": 27,
    "SubOptions": 28,
    "DivOptions": 29,
    "SqueezeOptions": 30,
    "StridedSliceOptions": 32,
    "ExpOptions": 33,
    "SplitOptions": 35,
    "CastOptions": 37,
    "DequantizeOptions": 38,
    "MaximumMinimumOptions": 39,
    "ArgMaxOptions": 40,
    "LessOptions": 41,
    "NegOptions": 42,
    "PadV2Options": 43,
    "GreaterOptions": 44,
    "GreaterEqualOptions": 45,
    "LessEqualOptions": 46,
    "SliceOptions": 48,
    "TransposeConvOptions": 49,
    "TileOptions": 51,
    "EqualOptions": 53,
    "NotEqualOptions": 54,
    "ShapeOptions": 55,
    "PowOptions": 56,
    "ArgMinOptions": 57,
    "PackOptions": 59,
    "LogicalOrOptions": 60,
    "LogicalAndOptions": 62,
    "LogicalNotOptions": 63,
    "UnpackOptions": 64,
    "SquareOptions": 66,
    "ResizeNearestNeighborOptions": 74,
    "LeakyReluOptions": 75,
    "SquaredDifferenceOptions": 76,
    "MirrorPadOptions": 77,
    "AbsOptions": 78,
    "SplitVOptions": 79,
    "ReverseV2Options": 81,
    "CosOptions": 84,
    "QuantizeOptions": 89,
    "HardSwishOptions": 91,
    "DepthToSpaceOptions": 94,
    "SelectV2Options": 98,
    "BatchMatMulOptions": 101,
    "CumsumOptions": 102,
    "BroadcastToOptions": 104,
    "GeluOptions": 116,
}
"""Member of the union of options -> its number."""

NUMPY: Mapping[int, str] = {
    0: "float32",
    1: "float16",
    2: "int32",
    3: "uint8",
    4: "int64",
    6: "bool",
    7: "int16",
    9: "int8",
    10: "float64",
    12: "uint64",
    15: "uint32",
    16: "uint16",
}
"""Element type of a tensor -> its name in numpy, of those that numpy has."""

OTHER_TYPES: Mapping[int, str] = {
    5: "string",
    8: "complex64",
    11: "complex128",
    13: "resource",
    14: "variant",
    17: "int4",
    18: "bfloat16",
    19: "int2",
    20: "uint4",
    21: "float8_e4m3fn",
    22: "float8_e5m2",
}
"""Element types whose bytes qtool does not read."""

ELEMENT_TYPES: Mapping[str, int] = {name: number for number, name in NUMPY.items()}

ACTIVATIONS = (
    (None, None),
    (0.0, None),
    (-1.0, 1.0),
    (0.0, 6.0),
)
"""Fused activation by its number -> its bounds."""
