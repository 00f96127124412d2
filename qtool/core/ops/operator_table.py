"""The operator table: a row per operator; registration and lookup."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.graph import torch_ops
from qtool.core.graph.file_parts import part_kind, part_macs
from qtool.core.mac_formulas import (
    of_einsum,
    of_layer,
    of_product,
    of_recurrent,
    of_transposed,
)
from qtool.core.operator_kinds import has_formula
from qtool.core.ops import recurrent
from qtool.core.ops.row import Op, Role
from qtool.core.remedies import CallEdit
from qtool.core.schemes import When
from qtool.core.types import Bounds

aten = torch.ops.aten

OPS: dict[Any, Op] = {}


def register(op: Op) -> None:
    """Add a row, which planner, exporter, audit and reports then use.

    Raises:
        PlanError: the row has no torch operator, or one that is registered already.
    """
    if not op.targets:
        raise PlanError(
            f"operator '{op.key}' names no torch operator", CallEdit("give at least one")
        )
    for target in op.targets:
        if target in OPS:
            raise PlanError(
                f"{target} is registered already ({OPS[target].key})", CallEdit("register it once")
            )
    for target in op.targets:
        OPS[target] = op


def rows() -> Iterable[Op]:
    """Return every row once, in the order of registration."""
    return dict.fromkeys(OPS.values())


def row_named(key: str) -> Op:
    """Return the first row of this key: of the operator itself, not of one that contains it."""
    return next(row for row in rows() if row.key == key)


def row_of(node: fx.Node) -> Op | None:
    return OPS.get(node.target) if node.op == "call_function" else None


def data_inputs(node: fx.Node) -> list[Any]:
    """Return the data arguments of a node (nodes or numbers), with lists flattened."""
    inputs: list[Any] = []
    for index in OPS[node.target].inputs:
        argument = node.args[index] if index < len(node.args) else None  # optional
        inputs += argument if isinstance(argument, list | tuple) else [argument]
    return inputs


def macs(node: fx.Node, batch: int) -> int | None:
    """Return the MACs of one sample at the captured sizes; None if they are not known.

    Layers with weights and matrix products have MACs, and the parts of a file that contain such.
    """
    row = row_of(node)
    if row is None:
        count = _macs_without_row(node)
    elif row.macs is None:
        count = 0 if row.macs_known else None
    elif any(map(_is_unknown, (node, *node.all_input_nodes))):
        count = None
    else:
        count = row.macs(node)
    return None if count is None else count // batch


def _macs_without_row(node: fx.Node) -> int | None:
    if part_kind(node) is not None:
        return part_macs(node)
    if not isinstance(node.target, torch._ops.OpOverload):
        return 0
    if node.target.namespace in ("prims", "qtool"):
        return 0
    name = str(node.target)
    known = node.target.namespace == "aten" and has_formula(name.removeprefix("aten."))
    return 0 if known else None


def _is_unknown(node: fx.Node) -> bool:
    """Return whether a size of a tensor depends on values, so that it is known at run time only."""
    sizes = G.shape(node) if isinstance(G.value(node), torch.Tensor) else ()
    return any(isinstance(s, torch.SymInt) and s.node.hint is None for s in sizes)


def _relu_bounds(node: fx.Node) -> Bounds:
    return 0.0, None


def _clamp_bounds(node: fx.Node) -> Bounds:
    return G.argument(node, 1, "min"), G.argument(node, 2, "max")


def _padded_codes(node: fx.Node, codes: fx.Node, zero: int) -> tuple[Any, tuple[Any, ...]]:
    return torch_ops.pad_codes, (codes, node.args[1], zero)


def _sizes(argument: Any) -> list[int]:
    assert isinstance(argument, fx.Node)
    return [G.hint(s) for s in G.shape(argument)]


def _layer_macs(node: fx.Node) -> int:
    return of_layer(_sizes(node), _sizes(node.args[1]))


def _transposed_macs(node: fx.Node) -> int:
    return of_transposed(_sizes(node.args[0]), _sizes(node.args[1]))


def _product_macs(node: fx.Node, second: int = 1) -> int:
    """MACs of a matrix product whose second factor is the argument at `second`."""
    return of_product(_sizes(node), _sizes(node.args[second]))


def _attention_macs(node: fx.Node) -> int:
    """MACs of queries times keys, and of the weights times values."""
    query, key, value = (_sizes(a) for a in node.args[:3])
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _einsum_macs(node: fx.Node) -> int:
    equation, operands = node.args[:2]
    assert isinstance(operands, list | tuple)
    return of_einsum(str(equation), [_sizes(o) for o in operands])


def _recurrent_macs(node: fx.Node) -> int:
    return of_recurrent(_sizes(node.args[0])[:2], *map(_sizes, node.args[1:3]))


_recurrent = partial(Op, weight=1, extra_weights=(2,), channel_axis=1, macs=_recurrent_macs)
_flat = partial(Op, flat=True)
_pool = partial(Op, spatial=True, homogeneous=True)
_extreme = partial(Op, role=Role.PASS)  # a scale is positive: codes are in the order of values

ROWS = (
    # layers: convolutions, linear layers, and the forms of linear layers with integer weights
    Op(
        key="conv",
        targets=(torch_ops.conv,),
        weight=1,
        bias=2,
        spatial=True,
        supported_modes=frozenset({When.NEVER}),
        macs=_layer_macs,
    ),
    Op(
        key="conv_transpose",
        targets=(torch_ops.conv_transpose,),
        weight=1,
        bias=2,
        spatial=True,
        channel_axis=1,
        macs=_transposed_macs,
    ),
    Op(  # inputs are flat: see passes/flatten_linear.py
        key="linear",
        targets=(aten.linear.default,),
        weight=1,
        bias=2,
        supported_modes=frozenset({When.DYNAMIC, When.NEVER}),
        from_blocks=torch_ops.linear_nbits,
        macs=_layer_macs,
    ),
    Op(  # weights are stacked: see passes/experts.py
        key="experts",
        targets=(torch_ops.expert_linear,),
        weight=1,
        from_blocks=torch_ops.expert_nbits,
        macs=_layer_macs,
    ),
    # products of two activations
    Op(
        key="matmul",
        targets=(aten.matmul.default, aten.bmm.default, aten.mm.default),
        inputs=(0, 1),
        macs=_product_macs,
    ),
    Op(
        key="matmul",
        targets=(aten.baddbmm.default,),  # the first argument is added to the product
        inputs=(1, 2),
        macs=partial(_product_macs, second=2),
    ),
    Op(key="einsum", targets=(aten.einsum.default,), inputs=(1,), macs=_einsum_macs),
    Op(
        key="attention",
        targets=(aten.scaled_dot_product_attention.default,),
        inputs=(0, 1, 2),
        macs=_attention_macs,
    ),
    # embeddings
    Op(
        key="embedding",
        targets=(torch_ops.embedding,),
        weight=1,
        from_codes=torch_ops.embedding_codes,
        from_blocks=torch_ops.embedding_nbits,
    ),
    # recurrent layers
    _recurrent(key="lstm", targets=(recurrent.lstm,)),
    _recurrent(key="gru", targets=(recurrent.gru,)),
    _recurrent(key="rnn", targets=(recurrent.rnn,)),
    # elementwise: sums, products, activation functions, clamps; and softmax
    Op(key="add", targets=(aten.add.Tensor,), inputs=(0, 1), in_place=aten.add_.Tensor),
    Op(key="mul", targets=(aten.mul.Tensor,), inputs=(0, 1)),
    _flat(key="sigmoid", targets=(aten.sigmoid.default,)),
    _flat(
        key="leaky_relu",
        targets=(aten.leaky_relu.default,),
        homogeneous=True,
        in_place=aten.leaky_relu_.default,
    ),
    _flat(key="silu", targets=(aten.silu.default,)),
    _flat(key="gelu", targets=(aten.gelu.default,)),
    _flat(key="hard_swish", targets=(aten.hardswish.default,), in_place=aten.hardswish_.default),
    Op(key="hard_sigmoid", targets=(aten.hardsigmoid.default,)),
    _flat(key="tanh", targets=(aten.tanh.default,)),
    Op(key="elu", targets=(aten.elu.default,)),
    Op(key="prelu", targets=(aten.prelu.default,), homogeneous=True),
    Op(key="softmax", targets=(aten.softmax.int,)),
    _flat(
        key="relu",
        targets=(aten.relu.default,),
        role=Role.CLIP,
        bounds=_relu_bounds,
        homogeneous=True,
        in_place=aten.relu_.default,
    ),
    _flat(
        key="clip",
        targets=(aten.clamp.default,),
        role=Role.CLIP,
        bounds=_clamp_bounds,
        in_place=aten.clamp_.default,
    ),
    Op(
        key="rescale",
        targets=(torch_ops.rescale,),
        role=Role.PASS,
        scale_factor=1,
        homogeneous=True,
    ),
    # pools, over windows and over whole images
    _pool(key="global_average_pool", targets=(torch_ops.global_average_pool,)),
    _pool(key="average_pool", targets=(torch_ops.average_pool,)),
    _pool(key="max_pool", targets=(torch_ops.max_pool,), role=Role.PASS),
    # extremes along axes
    _extreme(key="reduce_max", targets=(aten.amax.default,)),
    _extreme(key="reduce_min", targets=(aten.amin.default,)),
    # data movement, and resizes, most of which compute
    Op(key="concat", targets=(aten.cat.default,), role=Role.JOIN),
    Op(
        key="pad",
        targets=(aten.constant_pad_nd.default,),
        role=Role.PASS,
        on_codes=_padded_codes,
    ),
    Op(
        key="pass",
        role=Role.PASS,
        targets=(
            aten.reshape.default,
            aten.flatten.using_ints,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.unsqueeze.default,
            aten.permute.default,
            aten.transpose.int,
            aten.slice.Tensor,
            aten.select.int,
            aten.flip.default,
            aten.expand.default,
            aten.repeat.default,
            aten.tile.default,
            aten.upsample_nearest2d.default,
            aten.pixel_shuffle.default,
            aten.squeeze.dims,
            aten.index_select.default,
            aten.upsample_nearest2d.vec,
            aten._upsample_nearest_exact2d.vec,
        ),
    ),
)

for _row in ROWS:
    register(_row)
