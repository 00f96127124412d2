"""Linear layers on integer weights, in forms other than quantize and dequantize.

Each is written in the form that ONNX Runtime has a kernel for: dynamic quantization as
DynamicQuantizeLinear and MatMulInteger; int8 weights as Gemm on a dequantized weight stored as
[in, out] (the only order that the runtime turns into MatMulNBits); weights in blocks and those
of fewer bits as MatMulNBits.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import fx
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.graph import torch_ops
from qtool.core.ops import Op, recurrent, row_of
from qtool.core.packed_codes import pack
from qtool.core.quant_params import QuantParams, torch_dtype
from qtool.core.schemes import channel_block
from qtool.core.types import INT8, INT8_NARROW
from qtool.planning.fake_quantize import DynamicPoint, QuantPoint
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.targets import Target

_NAMES = (value_names.codes, value_names.scale, value_names.zero_point)
_FORMS = (Execution.DYNAMIC, Execution.WEIGHTS)
_Stored = dict[tuple[str, str, bytes], list[fx.Node | None]]


def lower_linears(module: fx.GraphModule, plan: QuantPlan, target: Target) -> None:
    """Rewrite the linear layers of these forms, in place, and remove their quant points."""
    chosen = {d.node: d.execution for d in plan.nodes if d.execution in _FORMS}
    stored: _Stored = {}
    for node in G.calls(module.graph):
        row = row_of(node)
        if row is None or G.name_of(node) not in chosen:
            continue
        with torch.no_grad():
            if node.target is recurrent.lstm:
                if chosen[G.name_of(node)] is Execution.DYNAMIC:
                    _lower_lstm(module, node)
            elif node.target is torch.ops.aten.linear.default:
                _lower(module, node, stored, target.file.contrib)
            elif row.from_blocks is not None:
                _lower_blocks(module, node, row, stored)
    for node in reversed(module.graph.nodes):
        called = G.submodule(module, node)
        if isinstance(called, QuantPoint | DynamicPoint) and not node.users:
            module.graph.erase_node(node)


def _lower(module: fx.GraphModule, node: fx.Node, stored: _Stored, contrib: bool) -> None:
    x, weight, bias = G.source(node), G.source(node, 1), G.argument(node, 2, "bias")
    called = G.submodule(module, x)
    dynamic = isinstance(called, DynamicPoint)
    data = x.args[0] if dynamic else x
    point = G.submodule(module, weight)
    assert isinstance(point, QuantPoint)
    source, params = G.source(weight), point.params
    assert params is not None, f"{point.point} has no parameters"
    narrow = contrib and not dynamic and params.qtype not in (INT8, INT8_NARROW)
    form = "dynamic" if dynamic else "blocks" if params.block or narrow else "codes"
    name, tensors = G.name_of(node), _tensors(module, source, point, form, stored)
    if form == "codes":
        scale, zero = tensors[1:]
        real = (tensors[0], scale, zero, 1)
        dequantized = G.add_call(
            node, torch_ops.dequantize, real, value_names.dequantize(point.point), source
        )
        call = G.add_call(node, torch_ops.gemm, (data, dequantized, bias), name, node)
    elif form == "dynamic":
        args = (data, *tensors[:2], bias)
        call = G.add_call(node, torch_ops.dynamic_linear, args, name, node)
    else:
        args = (data, *tensors, bias, params.qtype.bits)
        call = G.add_call(node, torch_ops.linear_nbits, args, name, node)
    G.replace(node, call)


def _lower_blocks(module: fx.GraphModule, node: fx.Node, row: Op, stored: _Stored) -> None:
    """Lower experts, or a lookup in the codes of a layer; an embedding of its own is lowered
    elsewhere."""
    data, weight, *rest = node.args
    assert isinstance(weight, fx.Node)
    point = G.submodule(module, weight)
    if not isinstance(point, QuantPoint) or (row.key != "experts" and point.block is None):
        return
    assert point.params is not None  # it is calibrated
    tensors = _tensors(module, G.source(weight), point, "blocks", stored)
    args = (data, *tensors, *rest, point.params.qtype.bits)
    G.replace(node, G.add_call(node, row.from_blocks, args, G.name_of(node), node))


def _lower_lstm(module: fx.GraphModule, node: fx.Node) -> None:
    """Lower a dynamic LSTM to codes as the kernel takes them: [directions, in, 4 x hidden]."""
    head, stored = next(iter(module.graph.nodes)), list[fx.Node]()
    x, _, _, b = node.args[:4]
    for weight in (G.source(node, 1), G.source(node, 2)):
        point = G.submodule(module, weight)
        assert isinstance(point, QuantPoint)
        source, params = G.source(weight), point.params
        assert params is not None, f"{point.point} has no parameters"
        weight_tensor = G.tensor(module, source)
        (codes,) = G.computed(partial(_transposed_codes, params), weight_tensor)
        scale, zero = (t.cpu().expand(len(codes), -1) for t in (params.scale, params.zero_point))
        tensors = {
            value_names.codes(point.point): codes,
            value_names.scale(point.point): scale.contiguous(),
            value_names.zero_point(point.point): zero.to(codes.dtype).contiguous(),
        }
        stored += [G.add_tensor(module, head, t, n) for n, t in tensors.items()]
    states = (*node.args[4:], None, None)[:2]
    args = (x, *stored, b, *states)
    G.replace(node, G.add_call(node, recurrent.dynamic_lstm, args, G.name_of(node), node))


def _tensors(
    module: fx.GraphModule, source: fx.Node, point: QuantPoint, form: str, stored: _Stored
) -> list[fx.Node | None]:
    """Return the stored tensors of a weight; once for a weight that is read twice."""
    params = point.params
    assert params is not None, f"{point.point} has no parameters"
    key = (form, str(source.target), params.scale.cpu().numpy().tobytes())
    if key not in stored:
        head = next(iter(module.graph.nodes))
        write = _in_blocks if form == "blocks" else _as_codes
        layout = partial(write, params, form != "dynamic")
        tensors = G.computed(layout, G.tensor(module, source))
        named = zip(_NAMES, tensors, strict=False)
        nodes = [G.add_tensor(module, head, t, name(point.point)) for name, t in named]
        stored[key] = [*nodes, *[None] * (len(_NAMES) - len(nodes))]
    return stored[key]


def _without_zeros(codes: torch.Tensor, params: QuantParams) -> torch.Tensor:
    """Return the scales, 0 where all values that one scales are zero.

    MatMulNBits subtracts zero points from float sums, and the rounding error of the difference is
    multiplied by the scale.
    """
    zero, scale = params.zero_point.cpu(), params.scale.cpu()
    nonzero = codes.to(torch.int64) != params.along(zero, codes.shape)
    axis = params.axis
    if axis is None:
        return scale.where(nonzero.any(), 0.0)
    if params.block is None:
        return scale.where(nonzero.movedim(axis, 0).flatten(1).any(1), 0.0)
    lines = F.pad(nonzero.movedim(axis, -1), (0, -codes.shape[axis] % params.block))
    return scale.where(lines.unflatten(-1, (-1, params.block)).any(-1).movedim(-1, axis), 0.0)


def _transposed_codes(params: QuantParams, weight: torch.Tensor) -> list[torch.Tensor]:
    """Return the codes of stacked matrices, [..., in, out]."""
    return [params.quantize(weight).cpu().transpose(1, 2).contiguous()]


def _as_codes(params: QuantParams, no_zeros: bool, weight: torch.Tensor) -> list[torch.Tensor]:
    """Return codes [in, out], scale and zero point per output.

    Args:
        params: parameters of the weight.
        no_zeros: see `_without_zeros`.
        weight: [out, in].
    """
    codes = params.quantize(weight).cpu()
    scale = _without_zeros(codes, params) if no_zeros else params.scale.cpu()
    zero = params.zero_point.cpu().to(torch_dtype(params.qtype))
    return [codes.t().contiguous(), scale.cpu(), zero]


def _in_blocks(params: QuantParams, no_zeros: bool, weight: torch.Tensor) -> list[torch.Tensor]:
    """Return codes [out, blocks, bytes], padded to whole blocks, scales and, of an unsigned type,
    zero points.

    Scales and zero points are [out, blocks], each row in bytes of its own. The kernel counts codes
    from 0 and uses half of their range as the zero point by default, so codes of a signed type are
    shifted by that. It supports some block sizes only: a scale for each channel is repeated.

    Args:
        params, no_zeros, weight: those of `_as_codes`.
    """
    codes = params.quantize(weight).cpu()
    scale = _without_zeros(codes, params) if no_zeros else params.scale
    bits, inputs = params.qtype.bits, codes.shape[-1]
    block = params.block or channel_block(inputs, bits)
    half = 2 ** (bits - 1) if params.qtype.signed else 0
    shape = (len(codes), -(-inputs // block))
    scale, zero = (
        t.cpu() if params.block else t.cpu().reshape(-1, 1).expand(shape)
        for t in (scale, params.zero_point)
    )
    filled = F.pad((codes.to(torch.int16) + half).to(torch.uint8), (0, -inputs % block))
    packed = pack(filled, bits).unflatten(-1, (shape[1], -1)).contiguous()
    tensors = [packed, scale.contiguous()]
    return tensors if params.qtype.signed else [*tensors, pack(zero.to(torch.uint8), bits)]
