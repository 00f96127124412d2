"""Lookups of rows in blocks, written with operators that every build of a runtime has.

The build of onnxruntime-web that has WebGPU, which transformers.js loads, has no
GatherBlockQuantized on its CPU provider: a file with one does not load there on the device `wasm`
(onnxruntime-web 1.31.0-dev.20260914, transformers.js 4.3).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool.backends.onnx.graph_edits import attributes_of

Values = list[ir.Value | None]
"""Inputs of a node."""


def write_plain_lookups(model: ir.Model) -> None:
    """Write each GatherBlockQuantized of bytes as Gather, Cast, Sub and Mul, in place.

    The values are the same: `f32(code - zero point) * scale`.
    """
    for node in [n for n in model.graph if n.op_type == "GatherBlockQuantized"]:
        if attributes_of(node)["bits"] == 8:
            _write(model.graph, node)


def _write(graph: ir.Graph, lookup: ir.Node) -> None:
    packed, ids, scales, *points = lookup.inputs
    (result,) = lookup.outputs
    nodes: list[ir.Node] = []

    def add(op: str, inputs: Values, **attributes: int) -> ir.Value:
        node = ir.Node("", op, inputs, [ir.AttrInt64(k, v) for k, v in attributes.items()])
        nodes.append(node)
        node.name = f"{lookup.name}/{op}_{len(nodes)}"
        node.outputs[0].name = f"{node.name}/output"
        return node.outputs[0]

    def floats(codes: ir.Value | None) -> ir.Value:
        return add("Cast", [add("Gather", [codes, ids])], to=ir.DataType.FLOAT.value)

    if points and points[0] is not None:
        middle = floats(points[0])
    else:
        middle = ir.Value(
            name=f"{lookup.name}/middle", const_value=ir.tensor(np.array(128, np.float32))
        )
        graph.register_initializer(middle)
    rows = add("Mul", [add("Sub", [floats(packed), middle]), add("Gather", [scales, ids])])
    rows.shape, rows.type = result.shape, result.type
    graph.insert_before(lookup, nodes)
    result.replace_all_uses_with(rows)
    graph.remove(lookup, safe=True)
