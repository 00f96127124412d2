"""Workaround for ONNX Runtime: a pad of zeros before a max pool.

Runtime: ONNX Runtime, seen in 1.31.1, operator Pad before MaxPool.
Defect: the optimizer fuses the pad (`Pad_Fusion`) into the pool, which pads with the lowest value
instead of zero. The result differs wherever a window holds negative values only.
Rewrite: a Max of one input between the two, which changes nothing and stops the fusion.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.backends.workaround import Workaround
from qtool.core import value_names


def isolate_max_pool_pads(model: ir.Model) -> None:
    """Insert a Max of one input between each Pad and the max pools that read it, in place."""
    for pad in [n for n in model.graph if n.op_type == "Pad"]:
        padded = pad.outputs[0]
        pools = [use for use in padded.uses() if use.node.op_type == "MaxPool"]
        if not pools:
            continue
        name = value_names.helper(str(pad.name), "Max", str(padded.name))
        idle = ir.Node("", "Max", [padded], name=name)
        idle.outputs[0].name = name
        idle.outputs[0].type, idle.outputs[0].shape = padded.type, padded.shape
        model.graph.insert_after(pad, idle)
        for use in pools:
            use.node.replace_input_with(use.idx, idle.outputs[0])


MAX_POOL_PADS = Workaround(
    key="max-pool-pads",
    package="onnxruntime",
    reason="Pad_Fusion moves a pad of zeros into a max pool, which pads with the lowest value",
    rewrite=isolate_max_pool_pads,
    seen_in="1.31.1",
    upstream="https://github.com/microsoft/onnxruntime/pull/18136",
    reproduction="test_onnxruntime.py::test_pad_of_zeros_is_fused_into_a_max_pool",
)
