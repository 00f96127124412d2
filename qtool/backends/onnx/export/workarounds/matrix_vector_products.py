"""The product of a transposed tensor and a vector, written with a matrix of one column.

ONNX Runtime takes the transpose into the product (FusedMatMul), and multiplies with the tensor as
it lay before where the other one is a vector.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool.core import value_names


def expand_matrix_vector_products(model: ir.Model) -> None:
    """Makes a column of such a vector, and drops that dimension behind the product, in place."""
    for product in [n for n in model.graph if n.op_type == "MatMul"]:
        left, vector = product.inputs
        made = None if left is None else left.producer()
        if vector is None or vector.shape is None or len(vector.shape) != 1:
            continue
        if made is None or made.op_type != "Transpose":
            continue
        result = product.outputs[0]
        said = str(result.name)
        last = _last(model, f"{said}.axis")
        column = ir.Node(
            "", "Unsqueeze", [vector, last], name=value_names.helper(said, "Unsqueeze", said)
        )
        column.outputs[0].name = column.name
        product.replace_input_with(1, column.outputs[0])
        flat = ir.Node("", "Squeeze", [result, last], name=product.name)
        result.replace_all_uses_with(flat.outputs[0], replace_graph_outputs=True)
        flat.replace_input_with(0, result)
        flat.outputs[0].name = said
        flat.outputs[0].type, flat.outputs[0].shape = result.type, result.shape
        product.name = value_names.helper(str(product.name), "MatMul", said)
        result.name, result.shape = product.name, None
        model.graph.insert_before(product, column)
        model.graph.insert_after(product, flat)


def _last(model: ir.Model, name: str) -> ir.Value:
    tensor = ir.tensor(np.array([-1], np.int64), name=name)
    found = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
    found.shape = ir.Shape([1])
    model.graph.register_initializer(found)
    return found
