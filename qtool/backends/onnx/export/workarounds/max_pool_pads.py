"""A pad of zeros before a max pool, kept apart in the file.

ONNX Runtime takes a pad of zeros into what reads it. A max pool pads with the lowest value instead,
so that the result is another one wherever all of a window is negative.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.core import value_names


def isolate_max_pool_pads(model: ir.Model) -> None:
    """Puts an operator that changes nothing (a Max of one input) between the two, in place."""
    for pad in [n for n in model.graph if n.op_type == "Pad"]:
        padded = pad.outputs[0]
        pools = [use for use in padded.uses() if use.node.op_type == "MaxPool"]
        if not pools:
            continue
        made = value_names.helper(str(pad.name), "Max", str(padded.name))
        idle = ir.Node("", "Max", [padded], name=made)
        idle.outputs[0].name = made
        idle.outputs[0].type, idle.outputs[0].shape = padded.type, padded.shape
        model.graph.insert_after(pad, idle)
        for use in pools:
            use.node.replace_input_with(use.idx, idle.outputs[0])
