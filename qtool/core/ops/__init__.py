"""The operators that qtool knows, and its own operators for decoders and recurrent layers."""

from qtool.core.ops.custom import custom_op_row
from qtool.core.ops.operator_table import (
    OPS,
    data_inputs,
    macs,
    register,
    row_named,
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
    "row_named",
    "row_of",
    "rows",
]
