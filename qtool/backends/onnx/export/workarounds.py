"""Rewrites of exported graphs that avoid defects of a runtime.

docs/upstream.md has a model that shows each defect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from qtool.backends.onnx.graph_edits import add_int64, append_node, attributes_of
from qtool.backends.runtime import Workaround
from qtool.core import value_names
from qtool.core.windows import overhang, spans

_Attributes = Mapping[str, Any]
_Sizes = Sequence[int]
_POOLS = ("AveragePool", "LpPool", "MaxPool")


# Workaround for onnx: pools with `ceil_mode`.
#
# Library: onnx, seen in 1.23.2 below opset 22, operators AveragePool, LpPool and MaxPool.
# Defect: shape inference counts a window too many where the last window would begin in the padding,
# so that the checker refuses a file that states the right size.
# Rewrite, for pools of known sizes: no `ceil_mode`. Where no window extends past the end the
# attribute has no effect; where padded values do not count, pads behind the image have its effect.


def remove_pool_ceil_mode(model: ir.Model) -> None:
    """Rewrite the attributes of pools with `ceil_mode` and known sizes, in place."""
    for node in model.graph:
        attributes = attributes_of(node)
        if node.op_type not in _POOLS or not attributes.get("ceil_mode", 0):
            continue
        rank = len(attributes["kernel_shape"])
        image, result = _sizes(node.inputs[0], rank), _sizes(node.outputs[0], rank)
        if image is None or result is None:
            continue
        same = attributes.get("auto_pad", "NOTSET").startswith("SAME")
        pads = (_same_pads if same else _floor_pads)(attributes, image, result)
        if pads is not None:
            node.attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 0)
        elif not same:  # some windows extend past the end
            pads = _shorter_pads(attributes, image, result)
        if pads is not None:
            node.attributes.pop("auto_pad", None)
            node.attributes["pads"] = ir.AttrInt64s("pads", pads)


def _windows(
    attributes: _Attributes, image: _Sizes, result: _Sizes
) -> tuple[list[int], list[int], list[int]]:
    """Pads before the image, pads behind it, and the pads that the last windows would need."""
    rank = len(image)
    ones, none = [1] * rank, [0] * 2 * rank
    explicit = attributes.get("auto_pad", "NOTSET") == "NOTSET"
    pads = list(attributes.get("pads", none)) if explicit else none
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    covered = spans(attributes["kernel_shape"], dilations)
    needed = list(map(overhang, result, image, covered, strides, pads[:rank]))
    return pads[:rank], pads[rank:], needed


def _same_pads(attributes: _Attributes, image: _Sizes, result: _Sizes) -> list[int] | None:
    _, _, needed = _windows(attributes, image, result)
    if min(needed) < -1:  # the runtime cuts the image in front, or fails
        return None
    begins = [max(n + (attributes["auto_pad"] == "SAME_LOWER"), 0) // 2 for n in needed]
    return [*begins, *(max(n - b, 0) for n, b in zip(needed, begins, strict=True))]


def _floor_pads(attributes: _Attributes, image: _Sizes, result: _Sizes) -> list[int] | None:
    """Return the pads with which rounding down gives as many windows, None without such pads."""
    begins, ends, needed = _windows(attributes, image, result)
    strides = attributes.get("strides", [1] * len(image))
    if all(0 <= e - n < s for e, n, s in zip(ends, needed, strides, strict=True)):
        return [*begins, *ends]
    kernel = attributes["kernel_shape"]
    too_wide = any(n >= k for n, k in zip(needed, kernel, strict=True))
    if attributes.get("count_include_pad", 0) or too_wide:
        return None  # the runtime takes no pads as wide as the window
    return [*begins, *(max(n, 0) for n in needed)]


def _shorter_pads(attributes: _Attributes, image: _Sizes, result: _Sizes) -> list[int]:
    """Return the pads without the part in which a window would begin."""
    begins, ends, needed = _windows(attributes, image, result)
    return [*begins, *(n if 0 <= n <= e else e for e, n in zip(ends, needed, strict=True))]


def _sizes(value: ir.Value | None, count: int) -> _Sizes | None:
    """Return the last `count` sizes of a tensor, None unless all are known."""
    shape = None if value is None else value.shape
    sizes = [] if shape is None else [s for s in list(shape)[-count:] if isinstance(s, int)]
    return sizes if len(sizes) == count else None


POOL_CEIL_MODE = Workaround(
    key="pool-ceil-mode",
    package="onnx",
    reason="shape inference below opset 22 counts a window too many where the last one would "
    "begin in the padding",
    rewrite=remove_pool_ceil_mode,
    upstream="https://github.com/onnx/onnx/pull/5741",
    reproduction="test_onnx.py::test_pool_with_ceil_mode_has_a_window_too_many",
)


# Workaround for ONNX Runtime: a pad of zeros before a max pool.
#
# Runtime: ONNX Runtime, seen in 1.31.1, operator Pad before MaxPool.
# Defect: the optimizer fuses the pad (`Pad_Fusion`) into the pool, which pads with the lowest value
# instead of zero. The result differs wherever a window holds negative values only.
# Rewrite: a Max of one input between the two, which changes nothing and stops the fusion.


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
    upstream="https://github.com/microsoft/onnxruntime/pull/18136",
    reproduction="test_onnxruntime.py::test_pad_of_zeros_is_fused_into_a_max_pool",
)


# Workaround for ONNX Runtime: the product of a transposed tensor and a vector.
#
# Runtime: ONNX Runtime, seen in 1.31.1, operator MatMul behind a Transpose.
# Defect: the optimizer fuses both to FusedMatMul, which ignores the transpose where the other
# operand is a vector, so that the result is wrong.
# Rewrite: the vector becomes a matrix of one column (Unsqueeze), and a Squeeze behind the product
# drops that dimension.


def expand_matrix_vector_products(model: ir.Model) -> None:
    """Write products of a transposed tensor and a vector as products of matrices, in place."""
    for product in [n for n in model.graph if n.op_type == "MatMul"]:
        left, vector = product.inputs
        producer = None if left is None else left.producer()
        if vector is None or vector.shape is None or len(vector.shape) != 1:
            continue
        if producer is None or producer.op_type != "Transpose":
            continue
        name = str(product.outputs[0].name)
        axis = add_int64(model, f"{name}.axis", [-1])
        column = ir.Node(
            "", "Unsqueeze", [vector, axis], name=value_names.helper(name, "Unsqueeze", name)
        )
        column.outputs[0].name = column.name
        product.replace_input_with(1, column.outputs[0])
        model.graph.insert_before(product, column)
        append_node(model, product, "Squeeze", [axis])


MATRIX_VECTOR_PRODUCTS = Workaround(
    key="matrix-vector-products",
    package="onnxruntime",
    reason="FusedMatMul ignores the transpose of a matrix where the other operand is a vector",
    rewrite=expand_matrix_vector_products,
    upstream="https://github.com/microsoft/onnxruntime/pull/3352",
    reproduction="test_onnxruntime.py::test_transposed_tensor_times_vector_is_another_product",
)


# Workaround for ONNX Runtime: a slow kernel for a layer norm behind an addition.
#
# Runtime: ONNX Runtime, 1.30.0 to 1.32.0, operator LayerNormalization behind an Add.
# Defect: the optimizer fuses both to SkipLayerNormalization, whose kernel for CPUs takes 3 to 8
# times as long as the two (`benchmarks/layer_norms.py`). 1.27 to 1.29 have it the other way round;
# there the fusion is what one wants.
# Rewrite: a Sum of the two operands, which is the same sum and is not fused.


def write_additions_as_sums(model: ir.Model) -> None:
    """Write each Add that only a LayerNormalization reads as a Sum, in place."""
    for add in [n for n in model.graph if n.op_type == "Add" and not n.domain]:
        (total,) = add.outputs
        readers = {use.node.op_type for use in total.uses()}
        constant = any(v is None or v.const_value is not None for v in add.inputs)
        if readers == {"LayerNormalization"} and not (constant or total.is_graph_output()):
            add.op_type = "Sum"


SKIP_LAYER_NORMS = Workaround(
    key="skip-layer-norms",
    package="onnxruntime",
    reason="the optimizer makes a slow SkipLayerNormalization of Add and LayerNormalization",
    rewrite=write_additions_as_sums,
    since="1.30",
    upstream="",
    reproduction="test_onnxruntime.py::test_an_addition_and_a_layer_norm_become_one_node",
)


# Workaround for onnx: an STFT without `onesided`.
#
# Library: onnx, seen in 1.23.2, operator STFT.
# Defect: without the attribute shape inference counts the frequencies of both sides, and the
# checker refuses a file that states the size of the default, one side.
# Rewrite: the attribute with its default.


def write_sides_of_spectra(model: ir.Model) -> None:
    """Write the default of `onesided` into each STFT, in place."""
    for node in model.graph:
        if node.op_type == "STFT" and "onesided" not in node.attributes:
            node.attributes["onesided"] = ir.AttrInt64("onesided", 1)


SIDES_OF_SPECTRA = Workaround(
    key="sides-of-spectra",
    package="onnx",
    reason="shape inference takes another default of `onesided`, and the checker refuses the file",
    rewrite=write_sides_of_spectra,
    upstream="https://github.com/onnx/onnx/pull/7731",
    reproduction="test_onnx.py::test_a_spectrum_without_onesided_has_both_sides",
)

ONNX_WORKAROUNDS = (
    POOL_CEIL_MODE,
    MAX_POOL_PADS,
    MATRIX_VECTOR_PRODUCTS,
    SKIP_LAYER_NORMS,
    SIDES_OF_SPECTRA,
)
"""For every ONNX file: whatever it is for, onnx checks it and ONNX Runtime runs it. A runtime has
those of its own in `Runtime.workarounds`."""
