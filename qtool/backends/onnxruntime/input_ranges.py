"""Ranges of the inputs of a QDQ file."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from qtool.backends.onnx.reading import OnnxModel, array_of, attributes_of, input_at, name_of
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph


def input_ranges(path: str | Path) -> dict[str, tuple[float, float]]:
    """Return the least and the largest value of inputs that are quantized or select rows."""
    file = OnnxModel.of(path)
    graph, ranges = QdqGraph(file), {}
    for value in file.inputs:
        for node in file.readers(value):
            if node.op_type == "QuantizeLinear":
                params = graph.params(node)
                scale, zero = float(params.scale), int(params.zero_point)
                margin = 0.05 * scale * params.qtype.levels
                low, high = (scale * (q - zero) for q in (params.qtype.qmin, params.qtype.qmax))
                ranges[name_of(value)] = (low - margin, high + margin)
        if rows := _table_rows(file, value):
            ranges[name_of(value)] = (0, min(rows) - 1)
    return ranges


_SAME_VALUES = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})


_LOOKUPS = frozenset({"Gather", "GatherBlockQuantized"})


def _table_rows(file: OnnxModel, value: ir.Value) -> list[int]:
    """Return the number of rows of each constant table from which a tensor selects rows."""
    rows: list[int] = []
    for node in file.readers(value):
        if node.op_type in _SAME_VALUES and input_at(node, 0) is value:
            rows += _table_rows(file, node.outputs[0])
        elif node.op_type in _LOOKUPS and input_at(node, 1) is value:
            table = input_at(node, 0)
            maker = None if table is None else table.producer()
            if maker is not None and maker.op_type == "DequantizeLinear":
                table = input_at(maker, 0)
            array, attributes = array_of(table), attributes_of(node)
            if array is not None and array.ndim:
                rows.append(array.shape[attributes.get("axis", attributes.get("gather_axis", 0))])
    return rows
