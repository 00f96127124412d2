"""The operator table: one row per operator, in modules by family."""

from qtool.core.ops import (
    attention,
    codes,
    elementwise,
    layers,
    lookups,
    moves,
    norms,
    pools,
    products,
    recurrent,
    rotary,
)
from qtool.core.ops.custom import custom_op_row
from qtool.core.ops.operator_table import (
    OPS,
    data_inputs,
    functions_of,
    kernel_of,
    macs,
    register,
    register_writer,
    row_of,
    rows,
    writers,
)
from qtool.core.ops.row import CustomOp, Op, Role, Writer

__all__ = [
    "OPS",
    "CustomOp",
    "Op",
    "Role",
    "Writer",
    "custom_op_row",
    "data_inputs",
    "functions_of",
    "kernel_of",
    "macs",
    "register",
    "register_writer",
    "row_of",
    "rows",
    "writers",
]

for _row in (
    *layers.LAYERS,
    *products.PRODUCTS,
    *lookups.LOOKUPS,
    *recurrent.RECURRENT,
    *elementwise.ELEMENTWISE,
    *pools.POOLS,
    *moves.MOVES,
):
    register(_row)

for _family in (layers, lookups, elementwise, moves, codes, rotary, attention):
    for _target, _writer in _family.WRITERS.items():
        register_writer(_target, _writer)
for _own in (layers, lookups, recurrent, attention, norms, rotary):
    for _target, _writer in _own.CONTRIB.items():
        register_writer(_target, _writer, contrib=True)
