"""Workaround for ONNX Runtime: the product of a transposed tensor and a vector.

Runtime: ONNX Runtime, seen in 1.31.1, operator MatMul behind a Transpose.
Defect: the optimizer fuses both to FusedMatMul, which ignores the transpose where the other operand
is a vector, so that the result is wrong.
Rewrite: the vector becomes a matrix of one column (Unsqueeze), and a Squeeze behind the product
drops that dimension.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.backends.onnx.graph_edits import add_int64, append_node
from qtool.backends.workaround import Workaround
from qtool.core import value_names


def expand_matrix_vector_products(model: ir.Model) -> None:
    """Write products of a transposed tensor and a vector as products of matrices, in place."""
    for product in [n for n in model.graph if n.op_type == "MatMul"]:
        left, vector = product.inputs
        producer = None if left is None else left.producer()
        if vector is None or vector.shape is None or len(vector.shape) != 1:
            continue
        if producer is None or producer.op_type != "Transpose":
            continue
        name = str(product.outputs[0].name)
        axis = add_int64(model, f"{name}.axis", [-1])
        column = ir.Node(
            "", "Unsqueeze", [vector, axis], name=value_names.helper(name, "Unsqueeze", name)
        )
        column.outputs[0].name = column.name
        product.replace_input_with(1, column.outputs[0])
        model.graph.insert_before(product, column)
        append_node(model, product, "Squeeze", [axis])


MATRIX_VECTOR_PRODUCTS = Workaround(
    key="matrix-vector-products",
    package="onnxruntime",
    reason="FusedMatMul ignores the transpose of a matrix where the other operand is a vector",
    rewrite=expand_matrix_vector_products,
    seen_in="1.31.1",
    upstream="https://github.com/microsoft/onnxruntime/pull/3352",
    reproduction="test_onnxruntime.py::test_transposed_tensor_times_vector_is_another_product",
)
