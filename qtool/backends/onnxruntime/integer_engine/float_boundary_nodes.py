"""Nodes with float inputs that compute in integers inside and have a kernel of the engine.

Their last bits depend on the processor. So each form is run once, small, in the kernel and in the
runtime, and the node runs in the runtime where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from onnx import TensorProto, helper
from torch import Tensor

from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.reading import OnnxModel, array_of, input_at, name_of
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.onnxruntime.integer_engine.matmul_nbits import (
    BITS,
    BLOCK,
    ON_CODES,
    PRODUCTS,
    match_product,
)
from qtool.backends.onnxruntime.integer_engine.node_forms import (
    BoundKernel,
    NodeForm,
    RandomInput,
    matches_runtime,
)
from qtool.backends.onnxruntime.kernels.dynamic import LstmDirection
from qtool.backends.profiles import Profile
from qtool.core.packed_codes import unpack
from qtool.core.quant_params import QuantParams
from qtool.core.schemes import KERNEL_BLOCKS
from qtool.core.types import INT8, UINT8, QType

_W, _R, _B, _LENGTHS, _H, _C, _PEEPHOLES, _W_SCALE, _W_ZERO, _R_SCALE, _R_ZERO = range(1, 12)
_STORED = (_W, _R, _B, _W_SCALE, _W_ZERO, _R_SCALE, _R_ZERO)
_BACKWARDS: Mapping[str, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}
_TIME, _BATCH, _INPUTS, _HIDDEN = 3, 5, 13, 21  # of a form: not multiples of a vector


@dataclass(frozen=True)
class _Kind:
    """What decides how a node computes.

    Attributes:
        direction: as in the file.
        types, per_channel: element types of W and R, and whether their scales are per channel.
        bias: whether it has one.
        states: whether initial states are inputs.
    """

    direction: str
    types: tuple[str, str]
    per_channel: tuple[bool, bool]
    bias: bool
    states: bool


def dynamic_lstm(node: Node, file: OnnxModel, profile: Profile) -> BoundKernel | None:
    """Return the kernel of a DynamicQuantizeLSTM, None for forms without one."""
    attributes, present = node.attributes, [input_at(node, i) is not None for i in range(12)]
    stored = {i: array_of(input_at(node, i)) for i in _STORED}
    if any(present[i] != (array is not None) for i, array in stored.items()):
        return None  # computed at run time
    plain = not (attributes.keys() - {"hidden_size", "direction"} or present[_LENGTHS])
    direction = attributes.get("direction", "forward")
    if (
        not plain
        or present[_PEEPHOLES]
        or present[_H] != present[_C]
        or direction not in _BACKWARDS
    ):
        return None

    known = {i: torch.from_numpy(array) for i, array in stored.items() if array is not None}
    layers = [_part(known, *each) for each in enumerate(_BACKWARDS[direction])]
    kernel = profile.bind("dynamic_lstm", layers)
    inputs = [node.inputs[i] for i in ((0, _H, _C) if present[_H] else (0,))]
    types = str(layers[0].w.qtype), str(layers[0].r.qtype)
    per_channel = known[_W_SCALE].dim() > 1, known[_R_SCALE].dim() > 1
    kind = _Kind(direction, types, per_channel, present[_B], present[_H])
    if len(node.outputs) != 3:
        return None
    return BoundKernel(kernel, inputs, _form(kind))


def _part(known: Mapping[int, Tensor], at: int, backwards: bool) -> LstmDirection:
    w, r = (
        _params(known[codes], known[scale][at], known[zero][at])
        for codes, scale, zero in ((_W, _W_SCALE, _W_ZERO), (_R, _R_SCALE, _R_ZERO))
    )
    weight, recurrent = (known[i][at].t().contiguous() for i in (_W, _R))
    bias = known[_B][at] if _B in known else None
    return LstmDirection(weight, w, recurrent, r, bias, backwards)


def _params(codes: Tensor, scale: Tensor, zero: Tensor) -> QuantParams:
    qtype = INT8 if codes.dtype == torch.int8 else UINT8
    zeros = zero.to(torch.int64).expand(scale.shape).clone()
    return QuantParams(qtype, scale, zeros, 0 if scale.dim() else None)


def _form(kind: _Kind) -> NodeForm:
    count = len(_BACKWARDS[kind.direction])
    sizes = [(count, 4 * _HIDDEN) if many else (count,) for many in kind.per_channel]
    state = RandomInput((count, _BATCH, _HIDDEN), runtime_input=True) if kind.states else None
    numbers = (
        RandomInput(size, t, high=below, std=0.004)
        for size, type_ in zip(sizes, kind.types, strict=True)
        for t, below in (("float32", None), (type_, 1))
    )
    specs = (
        RandomInput((_TIME, _BATCH, _INPUTS), runtime_input=True),
        RandomInput((count, _INPUTS, 4 * _HIDDEN), kind.types[0]),
        RandomInput((count, _HIDDEN, 4 * _HIDDEN), kind.types[1]),
        RandomInput((count, 8 * _HIDDEN)) if kind.bias else None,
        None,
        state,
        state,
        None,
        *numbers,
    )
    attributes = (("hidden_size", _HIDDEN), ("direction", kind.direction))
    return NodeForm("DynamicQuantizeLSTM", specs, "com.microsoft", attributes, outputs=3)


_MICROSOFT = "com.microsoft"
_ROWS, _OUTPUTS = 5, 21  # of a form: not multiples of what kernels process at once


def bind_node(
    node: Node, file: OnnxModel, profile: Profile, as_written: bool = False
) -> BoundKernel | None:
    """Return the kernel of a node, None without one that returns the bits of the runtime here.

    Args:
        node: node of the model.
        file: the model.
        profile: whose kernels are bound.
        as_written: no kernels for what the runtime fuses from several nodes.
    """
    bound = None if as_written and node.op_type in PRODUCTS else _bind(node, file, profile)
    if bound is None or profile.name != machine_profile():
        return bound  # no runtime to compare with here
    return bound if matches_runtime(bound.form, lambda n, its: _bind(n, its, profile)) else None


def _bind(node: Node, file: OnnxModel, profile: Profile) -> BoundKernel | None:
    key, bind = _KERNELS.get((node.domain, node.op_type), ("", None))
    return None if bind is None or key not in profile.binders else bind(node, file, profile)


def _matmul_nbits(node: Node, file: OnnxModel, profile: Profile) -> BoundKernel | None:
    attributes = node.attributes
    packed, scale, zeros, bias = (_constant(node, i) for i in (1, 2, 3, 5))
    present = [input_at(node, i) is not None for i in (3, 5)]
    computed = [zeros is not None, bias is not None] != present
    if packed is None or scale is None or computed or input_at(node, 4) is not None:
        return None
    bits, block = attributes.get("bits", 4), attributes["block_size"]
    types = (scale.dtype, torch.uint8 if zeros is None else zeros.dtype)
    known = types == (torch.float32, torch.uint8) and block in KERNEL_BLOCKS.get(bits, ())
    if (
        not known
        or attributes.get("accuracy_level", 0) != ON_CODES
        or attributes.get("weight_prepacked", 0)
    ):
        return None
    shape = (attributes["N"], -(-attributes["K"] // block))
    codes = unpack(packed.reshape(*shape, -1), block, bits)
    zero_point = torch.full(shape, 2 ** (bits - 1))
    if zeros is not None:
        zero_point = unpack(zeros.reshape(shape[0], -1), shape[1], bits)
    scales = scale.reshape(shape)
    kernel = profile.bind("matmul_nbits", codes, scales, zero_point, attributes["K"], bits, bias)
    return BoundKernel(kernel, node.inputs[:1], _blocks(bits, block, *present))


def _product(node: Node, file: OnnxModel, profile: Profile) -> BoundKernel | None:
    product = match_product(node, file)
    if product is None:
        return None
    tensors = (product.codes, product.scale, product.zero_point)
    kernel = profile.bind("matmul_nbits", *tensors, product.inputs, BITS, product.bias)
    form = _blocks(BITS, BLOCK, product.zeros, product.bias is not None)
    return BoundKernel(kernel, node.inputs[:1], form)


def _blocks(bits: int, block: int, zeros: bool, bias: bool) -> NodeForm:
    """Return the form of MatMulNBits: steps of 128 elements, and a remainder."""
    inputs = 2 * 128 + 3 * block - 5
    blocks = -(-inputs // block)
    specs = (
        RandomInput((_ROWS, inputs), runtime_input=True),
        RandomInput((_OUTPUTS, blocks, block * bits // 8), "uint8"),
        RandomInput((_OUTPUTS, blocks)),
        RandomInput((_OUTPUTS, -(-blocks * bits // 8)), "uint8") if zeros else None,
        None,
        RandomInput((_OUTPUTS,)) if bias else None,
    )
    sizes = {"K": inputs, "N": _OUTPUTS, "bits": bits, "block_size": block}
    attributes = {**sizes, "accuracy_level": ON_CODES}
    last = max(i for i, each in enumerate(specs) if each is not None)
    return NodeForm("MatMulNBits", specs[: last + 1], _MICROSOFT, tuple(attributes.items()))


def _gather_nbits(node: Node, file: OnnxModel, profile: Profile) -> BoundKernel | None:
    attributes, packed, scale = node.attributes, _constant(node, 0), input_at(node, 2)
    if packed is None or packed.dtype != torch.uint8 or _type(file, scale) != TensorProto.FLOAT:
        return None
    bits, block = attributes.get("bits", 4), attributes.get("block_size", 128)
    last, axis = packed.dim() - 1, attributes.get("quantize_axis", 1)
    if attributes.get("gather_axis", 0) != 0 or axis not in (last, -1):
        return None
    zeros, few = len(node.inputs) > 3, (3,) * (last - 1)
    blocks = 1 if last > 1 else 2
    specs = (
        RandomInput((_ROWS, *few, blocks * block * bits // 8), "uint8"),
        RandomInput((7,), "int64", high=_ROWS, runtime_input=True),
        RandomInput((_ROWS, *few, blocks)),
        *([RandomInput((_ROWS, *few, -(-blocks * bits // 8)), "uint8")] if zeros else []),
    )
    form_attributes = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": last}
    form = NodeForm("GatherBlockQuantized", specs, _MICROSOFT, tuple(form_attributes.items()))
    return BoundKernel(profile.bind("gather_nbits", packed, bits, block), node.inputs[1:], form)


def _dynamic_quantize(node: Node, file: OnnxModel, profile: Profile) -> BoundKernel | None:
    form = NodeForm(
        "DynamicQuantizeLinear", (RandomInput((_ROWS, _OUTPUTS), runtime_input=True),), outputs=3
    )
    return BoundKernel(profile.bind("dynamic_quantize"), node.inputs[:1], form)


def _dynamic_matmul(node: Node, file: OnnxModel, profile: Profile) -> BoundKernel | None:
    weight, scale, zeros, bias = (_constant(node, i) for i in (1, 2, 3, 4))
    present = [input_at(node, i) is not None for i in (3, 4)]
    computed = [zeros is not None, bias is not None] != present
    if weight is None or scale is None or weight.dim() != 2 or computed:
        return None
    qtype, scale = INT8 if weight.dtype == torch.int8 else UINT8, scale.squeeze()
    zero = torch.zeros(()) if zeros is None else zeros.squeeze()
    params = QuantParams(
        qtype, scale, zero.to(torch.int64).expand(scale.shape), 0 if scale.dim() else None
    )
    kernel = profile.bind("dynamic_matmul", params, weight.t().contiguous(), bias)
    numbers = (_OUTPUTS,) if scale.dim() else ()
    specs = (
        RandomInput((_ROWS, _OUTPUTS), runtime_input=True),
        RandomInput((_OUTPUTS, _OUTPUTS), str(qtype)),
        RandomInput(numbers),
        RandomInput(numbers, str(qtype)) if present[0] else None,
        RandomInput((_OUTPUTS,)) if present[1] else None,
    )
    last = max(i for i, each in enumerate(specs) if each is not None)
    form = NodeForm("DynamicQuantizeMatMul", specs[: last + 1], _MICROSOFT)
    return BoundKernel(kernel, node.inputs[:1], form)


def _matmul_integer(node: Node, file: OnnxModel, profile: Profile) -> BoundKernel | None:
    weight, zeros = _constant(node, 1), _constant(node, 3)
    computed = zeros is None and input_at(node, 3) is not None
    if weight is None or weight.dim() != 2 or computed:
        return None
    if _type(file, input_at(node, 0)) != TensorProto.UINT8:
        return None
    qtype = INT8 if weight.dtype == torch.int8 else UINT8
    zero = torch.zeros(()) if zeros is None else zeros.squeeze()
    axis = 0 if zero.dim() else None
    params = QuantParams(
        qtype, torch.ones(zero.shape, dtype=torch.float32), zero.to(torch.int64), axis
    )
    kernel = profile.bind("matmul_integer", params, weight.t().contiguous())
    inputs = tuple(i for i in (input_at(node, 0), input_at(node, 2)) if i is not None)
    return BoundKernel(kernel, inputs, _integers(qtype, len(inputs) > 1, zeros is not None))


def _integers(qtype: QType, x_zero: bool, w_zero: bool) -> NodeForm:
    specs = (
        RandomInput((_ROWS, _OUTPUTS), "uint8", runtime_input=True),
        RandomInput((_OUTPUTS, _OUTPUTS), str(qtype)),
        RandomInput((), "uint8", runtime_input=True) if x_zero else None,
        RandomInput((), str(qtype)) if w_zero else None,
    )
    last = max(i for i, each in enumerate(specs) if each is not None)
    return NodeForm("MatMulInteger", specs[: last + 1])


def _constant(node: Node, index: int) -> torch.Tensor | None:
    array = array_of(input_at(node, index))
    return None if array is None else torch.from_numpy(array)


def _type(file: OnnxModel, value: Value | None) -> int:
    """Return the ONNX type of a value, 0 if unknown."""
    array = array_of(value)
    if array is not None:
        return int(helper.np_dtype_to_tensor_dtype(array.dtype))
    known = file.value_info.get(name_of(value))
    return 0 if known is None else known.type.tensor_type.elem_type


_Bind = Callable[[Node, OnnxModel, Profile], BoundKernel | None]

_KERNELS: Mapping[tuple[str, str], tuple[str, _Bind]] = {
    (_MICROSOFT, "MatMulNBits"): ("matmul_nbits", _matmul_nbits),
    (_MICROSOFT, "GatherBlockQuantized"): ("gather_nbits", _gather_nbits),
    (_MICROSOFT, "DynamicQuantizeLSTM"): ("dynamic_lstm", dynamic_lstm),
    (_MICROSOFT, "DynamicQuantizeMatMul"): ("dynamic_matmul", _dynamic_matmul),
    ("", "DynamicQuantizeLinear"): ("dynamic_quantize", _dynamic_quantize),
    ("", "MatMulInteger"): ("matmul_integer", _matmul_integer),
    **{("", op): ("matmul_nbits", _product) for op in PRODUCTS},
}
