"""Nodes with float inputs that compute in integers inside and have a kernel of the engine.

Their last bits depend on the processor. So each form is run once, small, in the kernel and in the
runtime, and the node runs in the runtime where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from onnx import TensorProto, helper

from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.reading import OnnxModel, array_of, input_at, name_of
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.onnxruntime.integer_engine.dynamic_lstm import dynamic_lstm
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
from qtool.backends.profiles import Profile
from qtool.core.packed_codes import unpack
from qtool.core.quant_params import QuantParams
from qtool.core.schemes import KERNEL_BLOCKS
from qtool.core.types import INT8, UINT8, QType

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
