"""The part of the TFLite schema (version 3) that qtool reads and writes, as data.

A table is a tuple of fields in the order of their slots: (name, type, default), in the texts below
name:type=default. Types are scalars ("int32"), "string", a table, or a vector of one of these in
brackets. An empty tuple, "-" in a text, is a slot that is deprecated or that qtool does not need.
Options of operators have their number in the union in front. Source:
tensorflow/compiler/mlir/lite/schema/schema.fbs.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

IDENTIFIER = b"TFL3"
VERSION = 3

Field = tuple[()] | tuple[str, str] | tuple[str, str, Any]
Table = tuple[Field, ...]

_TABLES = """
Model: version:uint32 operator_codes:[OperatorCode] subgraphs:[SubGraph] description:string
  buffers:[Buffer] - metadata:[Metadata] signature_defs:[SignatureDef]
OperatorCode: deprecated_builtin_code:int8 custom_code:string version:int32=1 builtin_code:int32
SubGraph: tensors:[Tensor] inputs:[int32] outputs:[int32] operators:[Operator] name:string
Tensor: shape:[int32] type:int8 buffer:uint32 name:string quantization:QuantizationParameters
  is_variable:bool - shape_signature:[int32] has_rank:bool
Buffer: data:[uint8] offset:uint64 size:uint64
QuantizationParameters: min:[float32] max:[float32] scale:[float32] zero_point:[int64]
  details_type:uint8 - quantized_dimension:int32
Operator: opcode_index:uint32 inputs:[int32] outputs:[int32] builtin_options_type:uint8
  builtin_options:union custom_options:[uint8]
Metadata: name:string buffer:uint32
SignatureDef: inputs:[TensorMap] outputs:[TensorMap] signature_key:string -
  subgraph_index:uint32
TensorMap: name:string tensor_index:uint32
"""

_OPTIONS = """
1 Conv2DOptions: padding:int8 stride_w:int32 stride_h:int32 fused_activation_function:int8
  dilation_w_factor:int32=1 dilation_h_factor:int32=1
2 DepthwiseConv2DOptions: padding:int8 stride_w:int32 stride_h:int32 depth_multiplier:int32
  fused_activation_function:int8 dilation_w_factor:int32=1 dilation_h_factor:int32=1
5 Pool2DOptions: padding:int8 stride_w:int32 stride_h:int32 filter_width:int32
  filter_height:int32 fused_activation_function:int8
8 FullyConnectedOptions: fused_activation_function:int8 weights_format:int8 keep_num_dims:bool
  asymmetric_quantize_inputs:bool
9 SoftmaxOptions: beta:float32=0.0
10 ConcatenationOptions: axis:int32 fused_activation_function:int8
11 AddOptions: fused_activation_function:int8 pot_scale_int16:bool=True
15 ResizeBilinearOptions: - - align_corners:bool half_pixel_centers:bool
17 ReshapeOptions: new_shape:[int32]
19 SpaceToDepthOptions: block_size:int32
21 MulOptions: fused_activation_function:int8
23 GatherOptions: axis:int32 batch_dims:int32
27 ReducerOptions: keep_dims:bool
28 SubOptions: fused_activation_function:int8 pot_scale_int16:bool=True
29 DivOptions: fused_activation_function:int8
30 SqueezeOptions: squeeze_dims:[int32]
32 StridedSliceOptions: begin_mask:int32 end_mask:int32 ellipsis_mask:int32 new_axis_mask:int32
  shrink_axis_mask:int32 offset:bool
35 SplitOptions: num_splits:int32
37 CastOptions: in_data_type:int8 out_data_type:int8
40 ArgMaxOptions: output_type:int8
49 TransposeConvOptions: padding:int8 stride_w:int32 stride_h:int32
  fused_activation_function:int8
55 ShapeOptions: out_type:int8
57 ArgMinOptions: output_type:int8
59 PackOptions: values_count:int32 axis:int32
64 UnpackOptions: num:int32 axis:int32
74 ResizeNearestNeighborOptions: align_corners:bool half_pixel_centers:bool
75 LeakyReluOptions: alpha:float32=0.0
77 MirrorPadOptions: mode:int8
79 SplitVOptions: num_splits:int32
94 DepthToSpaceOptions: block_size:int32
101 BatchMatMulOptions: adj_x:bool adj_y:bool asymmetric_quantize_inputs:bool
102 CumsumOptions: exclusive:bool reverse:bool
116 GeluOptions: approximate:bool
"""

_WITHOUT_FIELDS = """
22:PadOptions 26:TransposeOptions 33:ExpOptions 38:DequantizeOptions 39:MaximumMinimumOptions
41:LessOptions 42:NegOptions 43:PadV2Options 44:GreaterOptions 45:GreaterEqualOptions
46:LessEqualOptions 48:SliceOptions 51:TileOptions 53:EqualOptions 54:NotEqualOptions
56:PowOptions 60:LogicalOrOptions 62:LogicalAndOptions 63:LogicalNotOptions 66:SquareOptions
76:SquaredDifferenceOptions 78:AbsOptions 81:ReverseV2Options 84:CosOptions 89:QuantizeOptions
91:HardSwishOptions 98:SelectV2Options 104:BroadcastToOptions
"""


def _field(text: str) -> Field:
    name, _, rest = text.partition(":")
    kind, _, default = rest.partition("=")
    if not kind:
        return ()
    return (name, kind, ast.literal_eval(default)) if default else (name, kind)


def _parse(text: str) -> Mapping[str, Table]:
    """Return name -> fields of the tables in a text, each from the beginning of a line."""
    rows = (row.partition(": ") for row in text.strip().replace("\n  ", " ").split("\n"))
    return {name: tuple(map(_field, fields.split())) for name, _, fields in rows}


_NUMBERED = {tuple(head.split()): table for head, table in _parse(_OPTIONS).items()}
_BARE = [each.split(":") for each in _WITHOUT_FIELDS.split()]

OPTIONS: Mapping[str, int] = {name: int(number) for number, name in (*_NUMBERED, *_BARE)}
"""Member of the union of options -> its number."""

TABLES: Mapping[str, Table] = {
    **_parse(_TABLES),
    **{name: table for (_, name), table in _NUMBERED.items()},
}
"""Table -> its fields. Options without fields are in `OPTIONS` only."""

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


_NAMES = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6
RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM
EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND
TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN
EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX
MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV
SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT
REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV
REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU
REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE
READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM
MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
""".split()  # noqa: SIM905  # a list of lines of one word would be longer

CODES: Mapping[str, int] = {name: number for number, name in enumerate(_NAMES)}
NAMES: Mapping[int, str] = dict(enumerate(_NAMES))
CUSTOM = CODES["CUSTOM"]
LAST_OF_BYTE = CODES["PLACEHOLDER_FOR_GREATER_OP_CODES"]
"""In the deprecated field of one byte all greater numbers have this one."""

_OTHER_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D"), "Pool2DOptions"),
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), "MaximumMinimumOptions"),
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"), "ReducerOptions"),
    "BATCH_MATMUL": "BatchMatMulOptions",
    "PADV2": "PadV2Options",
}
"""Operators whose options are not named as they are themselves."""


def options_of(operator: str) -> str | None:
    """Return the table of an operator's options, None for an operator without."""
    own = operator.replace("_", " ").title().replace(" ", "") + "Options"
    name = _OTHER_OPTIONS.get(operator, own)
    return name if name in OPTIONS else None
