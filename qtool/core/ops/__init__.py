"""The operator table: one row per operator, in modules by family."""

from qtool.core.ops import (
    elementwise,
    layers,
    lookups,
    moves,
    pools,
    products,
    recurrent,
)
from qtool.core.ops.custom import custom_op_row
from qtool.core.ops.operator_table import (
    OPS,
    data_inputs,
    macs,
    register,
    row_of,
    rows,
)
from qtool.core.ops.row import Op, Role

__all__ = [
    "OPS",
    "Op",
    "Role",
    "custom_op_row",
    "data_inputs",
    "macs",
    "register",
    "row_of",
    "rows",
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
