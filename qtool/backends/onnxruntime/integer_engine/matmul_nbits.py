"""Products of floats and stored 8-bit codes, which ONNX Runtime runs as MatMulNBits.

The runtime turns a weight behind a DequantizeLinear that one MatMul or Gemm reads into 8-bit codes
in blocks of 32, and that kernel rounds the other operand to int8, which the file does not state.
The conditions are those of `DQMatMulNodeGroupSelector` in ONNX Runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.reading import OnnxModel, array_of, input_at
from qtool.backends.onnxruntime.session import VERSION

FUSES_PRODUCTS = VERSION >= (1, 25)
"""Whether the installed runtime has this fusion; an older one computes the product of floats."""
BITS, BLOCK = 8, 32
ON_CODES = 4
"""Attribute accuracy_level of MatMulNBits at which it rounds its input to int8."""
MAX_SHARED = 8  # the runtime merges equal constants of up to so many floats
PRODUCTS = ("MatMul", "Gemm")
_PLAIN = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
_LIFT = {torch.int8: 128, torch.uint8: 0}  # the kernel counts codes from 0


@dataclass(frozen=True, eq=False)
class Product:
    """A product that runs as MatMulNBits.

    Attributes:
        codes: uint8 [out, blocks, block].
        scale, zero_point: [out, blocks].
        inputs: the number of input features.
        zeros: whether the file stores zero points.
        bias: [out], None without one.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor
    inputs: int
    zeros: bool
    bias: torch.Tensor | None


def match_product(node: Node, file: OnnxModel) -> Product | None:
    """Return what the runtime makes of a MatMul or Gemm, None if it stays a product of floats."""
    weight = _weight_dequantizer(node, file) if FUSES_PRODUCTS else None
    if weight is None or not _is_plain(node, file) or _absorbs_transpose(node, file):
        return None
    if _is_clamped(node) or _is_added(node, file):
        return None
    if any(_is_shared(input_at(weight, i), file) for i in (0, 1)):
        return None
    codes, scale, zero = (_tensor(weight, i) for i in range(3))
    bias, lift = _tensor(node, 2), None if codes is None else _LIFT.get(codes.dtype)
    if codes is None or scale is None or lift is None or codes.dim() != 2:
        return None
    inputs, outputs = codes.shape
    shapes = [t.shape for t in (scale, zero) if t is not None]
    whole = all(shape == () for shape in shapes)
    by_output = all(shape == (outputs,) for shape in shapes)
    if scale.dtype != torch.float32 or not (whole or (by_output and _axis(weight) == 1)):
        return None
    computed = [t is None and input_at(n, 2) is not None for n, t in ((weight, zero), (node, bias))]
    if any(computed) or (bias is not None and bias.shape != (outputs,)):
        return None
    blocks = (outputs, -(-inputs // BLOCK))
    zero_points = torch.zeros(()) if zero is None else zero
    unsigned = (codes.t().to(torch.int16) + lift).to(torch.uint8)
    filled = F.pad(unsigned, (0, -inputs % BLOCK)).reshape(*blocks, BLOCK)
    scales, zeros = (
        t.reshape(-1, 1).expand(blocks) for t in (scale, zero_points.to(torch.int64) + lift)
    )
    stores_zeros = zero is not None or lift == 0
    return Product(filled, scales.contiguous(), zeros.contiguous(), inputs, stores_zeros, bias)


def _weight_dequantizer(node: Node, file: OnnxModel) -> Node | None:
    """Return the DequantizeLinear of the weight.

    None if the other operand has one as well, or the product is not its only reader.
    """
    weights = input_at(node, 1)
    producer = None if weights is None else weights.producer
    data = input_at(node, 0)
    if producer is None or weights is None or data is None:
        return None
    before = data.producer
    is_only = before is None or before.op_type != "DequantizeLinear"
    blocks = producer.attributes.get("block_size", 0)
    fits = producer.op_type == "DequantizeLinear" and not blocks
    return producer if is_only and fits and file.only_reader(weights) is node else None


def _is_shared(value: Value | None, file: OnnxModel) -> bool:
    """Return whether another node reads a constant, or one that the runtime finds equal."""
    if value is None or len(value.uses) > 1:
        return True
    array = array_of(value)
    if array is None or array.size > MAX_SHARED or str(array.dtype) != "float32":
        return False
    others = (array_of(v) for v in file.graph.initializers.values() if v is not value)
    return any(
        o is not None and o.dtype == array.dtype and np.array_equal(o, array) for o in others
    )


def _is_plain(node: Node, file: OnnxModel) -> bool:
    """Return whether a product has default attributes and no QuantizeLinear reads it."""
    attributes = {**_PLAIN, **node.attributes}
    readers = {reader.op_type for reader in file.readers(node.outputs[0])}
    default = all(attributes[name] == value for name, value in _PLAIN.items())
    return default and "QuantizeLinear" not in readers


def _is_added(node: Node, file: OnnxModel) -> bool:
    """Return whether an Add behind a MatMul becomes its bias; such products stay with the runtime.

    `MatMulAddFusion` wants a tensor of one or two dimensions.
    """
    product = node.outputs[0]
    add = file.only_reader(product) if node.op_type == "MatMul" else None
    if add is None or add.op_type != "Add":
        return False
    other = next((v for v in add.inputs if v is not None and v is not product), product)
    return other.shape is None or 1 <= len(other.shape) <= 2


def _is_clamped(node: Node) -> bool:
    """Return whether a Relu or Clip with one reader is all that reads a product.

    The runtime (`NodeGroupSelector::GetQDQSelection`) takes it for one that the QuantizeLinear
    behind it implies, and leaves the product alone.
    """
    uses = list(node.outputs[0].uses)
    if len(uses) != 1 or uses[0].node.op_type not in ("Relu", "Clip"):
        return False
    result = uses[0].node.outputs[0]
    return len(result.uses) == 1 and not result.is_output


def _absorbs_transpose(node: Node, file: OnnxModel) -> bool:
    """Return whether a Gemm is fused with a Transpose before it, or behind it if it has no bias.

    `GemmTransposeFusion` runs before the rule of this module: the product is one of floats then.
    """
    if node.op_type != "Gemm":
        return False
    data, behind = _without_reshapes(input_at(node, 0)), file.only_reader(node.outputs[0])
    before = None if data is None else data.producer
    if before is not None and before.op_type == "Transpose" and len(before.outputs[0].uses) == 1:
        # the runtime removes a Reshape behind it only where it states its permutation
        return data is input_at(node, 0) or "perm" in before.attributes
    return behind is not None and behind.op_type == "Transpose" and input_at(node, 2) is None


def _without_reshapes(value: Value | None) -> Value | None:
    """Return a value before reshapes to its own sizes, which the runtime removes."""
    while value is not None and (producer := value.producer) is not None:
        source, sizes = input_at(producer, 0), value.shape
        fixed = sizes is not None and all(isinstance(s, int) for s in sizes)
        same = source is not None and fixed and source.shape == sizes
        if producer.op_type not in ("Identity", "Reshape") or not same:
            break
        value = source
    return value


def _axis(weight: Node) -> int:
    return int(weight.attributes.get("axis", 1))


def _tensor(node: Node, index: int) -> torch.Tensor | None:
    array = array_of(input_at(node, index))
    supported = array is not None and str(array.dtype) in ("int8", "uint8", "float32")
    return torch.from_numpy(array) if supported else None
