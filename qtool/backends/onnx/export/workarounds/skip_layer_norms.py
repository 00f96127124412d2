"""Workaround for ONNX Runtime: a slow kernel for a layer norm behind an addition.

Runtime: ONNX Runtime, 1.30.0 to 1.32.0, operator LayerNormalization behind an Add.
Defect: the optimizer fuses both to SkipLayerNormalization, whose kernel for CPUs takes 3 to 8 times
as long as the two (`benchmarks/layer_norms.py`). 1.27 to 1.29 have it the other way round; there
the fusion is what one wants.
Rewrite: a Sum of the two operands, which is the same sum and is not fused.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.backends.workaround import Workaround


def write_additions_as_sums(model: ir.Model) -> None:
    """Write each Add that only a LayerNormalization reads as a Sum, in place."""
    for add in [n for n in model.graph if n.op_type == "Add" and not n.domain]:
        (total,) = add.outputs
        readers = {use.node.op_type for use in total.uses()}
        constant = any(v is None or v.const_value is not None for v in add.inputs)
        if readers == {"LayerNormalization"} and not (constant or total.is_graph_output()):
            add.op_type = "Sum"


SKIP_LAYER_NORMS = Workaround(
    key="skip-layer-norms",
    package="onnxruntime",
    reason="the optimizer makes a slow SkipLayerNormalization of Add and LayerNormalization",
    rewrite=write_additions_as_sums,
    seen_in="1.31.1",
    since="1.30",
    upstream="",
    reproduction="test_onnxruntime.py::test_an_addition_and_a_layer_norm_become_one_node",
)
