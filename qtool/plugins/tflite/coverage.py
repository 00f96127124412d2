"""What runs in integers in a TFLite file, and which kernels the default delegate takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from qtool.core.errors import VerificationError
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.file import Model, Operator
from qtool.plugins.tflite.file.codes import is_codes, is_dynamic_linear
from qtool.plugins.tflite.litert_file import LitertFile
from qtool.verification.coverage import AuditRow, Coverage

_MOVES = frozenset(
    [
        *("BROADCAST_TO", "CAST", "DEPTH_TO_SPACE", "DEQUANTIZE", "EXPAND_DIMS", "GATHER", "PACK"),
        *("PAD", "PADV2", "QUANTIZE", "RESHAPE", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2", "SHAPE"),
        *("SLICE", "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE"),
        *("TRANSPOSE", "UNPACK"),
    ]
)
"""Operators that compute nothing and are not listed."""


def tflite_coverage(file: LitertFile, reasons: Mapping[str, str] | None = None) -> Coverage:
    """Return the operators of a file, with the kernels that run them.

    The partitioning is that which XNNPACK, the default delegate, reports for the file; without
    LiteRT the kernels are those of the file.

    Args:
        file: the file.
        reasons: name of a tensor -> why its operator stays in float.
    """
    model = file.model
    remaining: frozenset[int] | None = None
    runtime = "LiteRT, not installed here"
    if litert.version() is not None:
        runtime = f"{litert.TITLE} {litert.version()}"
        try:
            remaining = litert.left_by_delegate(file.path)
        except VerificationError:  # a file with the sizes of no sample; run as it is, it is refused
            remaining = None
    rows: dict[tuple[str, bool], AuditRow] = {}
    for op in model.operators:
        if not op.outputs or op.name in _MOVES:
            continue
        name, integer = file.layers[op.outputs[0]], _is_integer(model, op)
        reason = "" if integer else (reasons or {}).get(name, "computes in float")
        kernel = op.name
        if remaining is not None:
            where = litert.TITLE if op.outputs[0] in remaining else "XNNPACK"
            kernel = f"{op.name}, {where}"
        kind = model.tensors[op.outputs[0]].type
        row = AuditRow(name, op.name, f"{kernel} {kind}", integer, macs(model, op), reason)
        first = rows.get((name, integer))
        rows[name, integer] = row if first is None else replace(first, macs=first.macs + row.macs)
    summed = {name for name, integer in rows if integer and (name, False) in rows}
    sums = {(name, False) for name in summed if rows[name, False].op == "ADD"}  # of parts
    return Coverage(runtime, tuple(row for key, row in rows.items() if key not in sums))


def _is_integer(model: Model, op: Operator) -> bool:
    tensor = model.tensors[op.outputs[0]]
    whole = is_codes(tensor) or tensor.type in ("int32", "int64", "bool")
    return whole or is_dynamic_linear(model, op)


def macs(model: Model, op: Operator) -> int:
    """Return the multiply-accumulates of an operator for one sample: shapes are those of one."""
    shapes = [model.tensors[i].shape if i >= 0 else () for i in op.inputs]
    out = model.tensors[op.outputs[0]].shape
    if op.name == "CONV_2D" and len(shapes) > 1:
        return prod(out) * prod(shapes[1][1:])
    if op.name == "DEPTHWISE_CONV_2D" and len(shapes) > 1:
        return prod(out) * prod(shapes[1][1:3])
    if op.name == "TRANSPOSE_CONV" and len(shapes) > 2:
        return prod(shapes[2]) * prod(shapes[1][:3])
    if op.name == "FULLY_CONNECTED" and len(shapes) > 1:
        return prod(out) * shapes[1][-1]
    if op.name == "BATCH_MATMUL" and len(shapes) > 1:
        swapped = bool(op.options.get("adj_x", False))
        return prod(out) * shapes[0][-2 if swapped else -1]
    return 0
