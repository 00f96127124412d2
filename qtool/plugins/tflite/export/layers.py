"""Convolutions and pools on codes; what linear layers share with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx

from qtool.backends.kernels.params import NO_BOUNDS
from qtool.core import graph as G
from qtool.core.errors import ExportError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import Argument, ModelEdit
from qtool.core.types import Bounds
from qtool.core.windows import last_pad, overhang, same_padding, spans, window_count
from qtool.plugins.tflite.export.graph_builder import quantization
from qtool.plugins.tflite.export.values import Codes, Order, Stored, Value, channels_last
from qtool.plugins.tflite.export.writer import Writer, activation

SAME, VALID = 0, 1


@dataclass(frozen=True)
class _Windows:
    """The windows of a convolution or a pool over an image, by the two axes of the image.

    Attributes:
        kernel: their sizes.
        stride: their distances.
        pads: all begins, then all ends.
        dilation: distances of the elements in a window.
    """

    kernel: Sequence[int]
    stride: Sequence[int]
    pads: Sequence[int]
    dilation: Sequence[int] = (1, 1)

    def same_pads(self, sizes: Sequence[int]) -> list[int]:
        """Return the pads of TFLite's padding SAME for an image of these sizes."""
        spanned = spans(self.kernel, self.dilation)
        totals = [max(t, 0) for t in map(same_padding, sizes, spanned, self.stride)]
        return [*(t // 2 for t in totals), *(t - t // 2 for t in totals)]


def conv(writer: Writer, node: fx.Node, out: Codes = None, bounds: Bounds = NO_BOUNDS) -> Value:
    """Write CONV_2D or DEPTHWISE_CONV_2D; a signal is an image of height 1."""
    _require_image(node)
    x, weight, bias = read_layer(writer, node, out)
    args: tuple[Any, ...] = node.args
    stride, pads, dilation = (list(map(int, a)) for a in args[3:6])
    groups = int(args[6])
    codes = weight.data
    if codes.dim() == 3:
        stride, dilation, codes = [1, *stride], [1, *dilation], codes.unsqueeze(2)
        pads = [0, pads[0], 0, pads[1]]
    image = _image(writer, x)
    depthwise = groups > 1 and codes.shape[1] == 1 and groups == image.sizes[1]
    windows = _Windows(codes.shape[2:], stride, pads, dilation)
    image, padding = _padded(writer, image, windows, name(node))
    result = _image_result(writer, node, out)
    options = {
        "padding": padding,
        "stride_h": stride[0],
        "stride_w": stride[1],
        "dilation_h_factor": dilation[0],
        "dilation_w_factor": dilation[1],
        "fused_activation_function": activation(bounds, out),
    }
    if depthwise:
        options["depth_multiplier"] = codes.shape[0] // groups
    inputs: list[Value | int] = [
        image,
        store_weight(writer, weight, codes, (1, 2, 3, 0) if depthwise else (0, 2, 3, 1)),
        store_bias(writer, bias, weight, x),
    ]
    kind = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    writer.emit(kind, inputs, result, 1 if out is None else 3, **options)
    return _signal(writer, node, result)


def conv_transpose(
    writer: Writer, node: fx.Node, out: Codes = None, bounds: Bounds = NO_BOUNDS
) -> Value:
    """Write TRANSPOSE_CONV over the whole result, and a STRIDED_SLICE that crops the padding."""
    _require_image(node)
    args: tuple[Any, ...] = node.args
    if any(d != 1 for d in args[7]) or args[6] != 1:
        raise ExportError(
            f"{name(node)}: TFLite's TRANSPOSE_CONV has no groups and no dilation",
            ModelEdit("write a layer per group in the model"),
            Argument("-o", "FILE.onnx", "write an .onnx file, {}"),
        )
    x, weight, bias = read_layer(writer, node, out)
    stride, padding, extra = (list(map(int, a)) for a in args[3:6])
    codes = weight.data
    if codes.dim() == 3:
        stride, padding, extra = [1, *stride], [0, *padding], [0, *extra]
        codes = codes.unsqueeze(2)
    image = _image(writer, x)
    result = _image_result(writer, node, out)
    sizes = [
        max((n - 1) * s + k, p + size)
        for n, s, k, p, size in zip(
            image.sizes[2:], stride, codes.shape[2:], padding, result.sizes[2:], strict=True
        )
    ]
    whole = result
    if tuple(sizes) != result.sizes[2:]:
        wide = (*result.sizes[:2], *sizes)
        whole = writer.tensor(f"{name(node)}.uncropped", wide, result.dynamic, result.order, out)
    shape = writer.run_time_sizes(image, whole.physical)
    kernel = store_weight(writer, weight, codes, (1, 2, 3, 0), 0)
    options = {
        "padding": VALID,
        "stride_h": stride[0],
        "stride_w": stride[1],
        "fused_activation_function": activation(bounds, out),
    }
    inputs: list[Value | int] = [shape, kernel, image, store_bias(writer, bias, weight, x)]
    version = 4 if options["fused_activation_function"] else 3
    writer.emit("TRANSPOSE_CONV", inputs, whole, version, **options)
    if whole is not result:
        ranges = {i: (p, p + result.sizes[i], 1) for i, p in enumerate(padding, 2)}
        writer.strided(whole, result, ranges)
    return _signal(writer, node, result)


def max_pool(writer: Writer, node: fx.Node) -> Value:
    """Write MAX_POOL_2D, on codes where they are."""
    x, (kernel, stride, padding, dilation) = _pool(writer, node, 4)
    if any(d != 1 for d in dilation):
        raise ExportError(f"{name(node)}: TFLite has no max pool with dilation")
    windows = _pool_windows(x, kernel, stride, padding, bool(node.args[5]))
    image, same = _padded(writer, x, windows, name(node), lowest=True)
    return _write_pool(writer, node, "MAX_POOL_2D", image, same, windows)


def average_pool(
    writer: Writer, node: fx.Node, out: Codes = None, bounds: Bounds = NO_BOUNDS
) -> Value:
    """Write AVERAGE_POOL_2D; padding that counts in the mean is written as PAD."""
    if out is None:
        writer.values[G.source(node)] = writer.floats(node.args[0])
    x, (kernel, stride, padding) = _pool(writer, node, 3)
    windows = _pool_windows(x, kernel, stride, padding, bool(node.args[4]))
    if node.args[6] is not None:
        raise ExportError(f"{name(node)}: TFLite has no average pool with a divisor")
    if any(windows.pads) and not node.args[5]:
        image, same = x, SAME
        if windows.pads != windows.same_pads(x.sizes[2:]):
            raise ExportError(
                f"{name(node)}: TFLite's average pool cannot leave this padding out of the mean",
                ModelEdit("use count_include_pad=True or no padding"),
            )
    else:
        image, same = _padded(writer, x, windows, name(node), explicit=True)
    return _write_pool(writer, node, "AVERAGE_POOL_2D", image, same, windows, out, bounds)


def global_average_pool(
    writer: Writer, node: fx.Node, out: Codes = None, bounds: Bounds = NO_BOUNDS
) -> Value:
    x = writer.read_operand(node.args[0], out)
    order = x.order if len(x.sizes) != 4 else channels_last(4)
    x = writer.in_order(x, order)
    result = writer.tensor_like(name(node), node, order, out)
    axes = writer.integers([x.axis(i) for i in range(2, len(x.sizes))])
    return writer.emit("MEAN", [x, axes], result, 1 if out is None else 2, keep_dims=True)


def name(node: fx.Node) -> str:
    return G.name_of(node)


def read_layer(
    writer: Writer, node: fx.Node, out: QuantParams | None
) -> tuple[Value, Stored, Stored | None]:
    """Return input, weight and bias; of a float layer integer weights are dequantized here."""
    x = writer.read_operand(node.args[0], out)
    weight, bias = writer.argument(node.args[1]), G.argument(node, 2, "bias")
    stored = None if bias is None else writer.argument(bias)
    if not isinstance(weight, Stored) or isinstance(stored, Value):
        raise ExportError(f"{name(node)}: TFLite needs a stored weight and bias")
    if out is None:
        weight, stored = weight.in_float(), None if stored is None else stored.in_float()
    return x, weight, stored


def _require_image(node: fx.Node) -> None:
    if G.rank(node) > 4:
        raise ExportError(
            f"{name(node)}: TFLite files hold convolutions over one or two dimensions"
        )


def _image(writer: Writer, x: Value) -> Value:
    """Return an image [N, C, H, W] in TFLite's layout; of a signal one of height 1."""
    if len(x.sizes) == 4:
        return writer.in_order(x, channels_last(4))
    x = writer.in_order(x, channels_last(3))
    key = x.index, x.order, channels_last(4)
    if key not in writer.cache.orders:
        sizes, dynamic = (*x.sizes[:2], 1, x.sizes[2]), (*x.dynamic[:2], False, x.dynamic[2])
        title = f"{writer.builder.tensors[x.index].name}.image"
        image = writer.tensor(title, sizes, dynamic, channels_last(4), x.params, x.dtype)
        writer.reshape(x, image)
        writer.cache.orders[key] = image
    return writer.cache.orders[key]


def _image_result(writer: Writer, node: fx.Node, out: QuantParams | None) -> Value:
    fake = G.value(node)
    sizes, dynamic = (
        [writer.size(s) for s in fake.shape],
        [writer.is_dynamic(s) for s in fake.shape],
    )
    signal = len(sizes) == 3
    if signal:
        sizes.insert(2, 1)
        dynamic.insert(2, False)
    title = f"{name(node)}.image" if signal else name(node)
    return writer.tensor(title, sizes, dynamic, channels_last(4), out)


def _signal(writer: Writer, node: fx.Node, image: Value) -> Value:
    """Return the result of a layer: of a signal without the height."""
    if G.rank(node) == 4:
        return image
    result = writer.tensor_like(name(node), node, channels_last(3), image.params)
    writer.reshape(image, result)
    writer.cache.orders[result.index, result.order, channels_last(4)] = image
    return result


def _padded(
    writer: Writer,
    x: Value,
    windows: _Windows,
    title: str,
    lowest: bool = False,
    explicit: bool = False,
) -> tuple[Value, int]:
    """Return the image, padded where SAME and VALID do not fit, and the padding of the operator.

    Args:
        lowest: pad with the lowest value instead of zero.
        explicit: padding SAME would be something else.
    """
    pads = windows.pads
    if not any(pads):
        return x, VALID
    if not explicit and list(pads) == windows.same_pads(x.sizes[2:]):
        return x, SAME
    rank = len(pads) // 2
    around = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    sizes = [s + a + b for s, (a, b) in zip(x.sizes, around, strict=True)]
    padded = writer.tensor(f"{title}.pad", sizes, x.dynamic, x.order, x.params)
    widths = writer.pads(x, around)
    zero_is_lowest = x.params is not None and int(x.params.zero_point) == x.params.qtype.qmin
    if lowest and not zero_is_lowest:
        fill = _lowest(writer, x)
        return writer.emit("PADV2", [x, widths, fill], padded, 1 if x.params is None else 2), VALID
    return writer.emit("PAD", [x, widths], padded, 1 if x.params is None else 2), VALID


def _lowest(writer: Writer, x: Value) -> int:
    if x.params is None:
        lowest = np.array([np.finfo(np.float32).min], np.float32)
        return writer.builder.constant("lowest", lowest)
    code = np.array([x.params.qtype.qmin], x.params.qtype.numpy_dtype)
    return writer.builder.constant("lowest", code, quantization(x.params))


def store_weight(
    writer: Writer,
    weight: Stored,
    codes: torch.Tensor,
    order: Order,
    axis: int | None = None,
    columns: Sequence[int] = (),
) -> int:
    """Store a weight.

    Args:
        codes: codes in the axes of the graph.
        order: axis of the graph that each axis of the tensor holds.
        axis: axis of the tensor that has the channels; by default that of the graph's first.
        columns: the column of the graph that each column of the tensor holds; empty: the same.
    """
    laid_out = codes[:, torch.tensor(columns)] if columns else codes
    array = np.ascontiguousarray(laid_out.detach().permute(*order).numpy())
    if weight.params is None:
        return writer.builder.constant(weight.name, array)
    axis = order.index(0) if axis is None else axis
    index = writer.builder.constant(weight.name, array, quantization(weight.params, axis))
    writer.store(weight, index, order, columns)
    return index


def store_bias(writer: Writer, bias: Stored | None, weight: Stored, x: Value) -> int:
    """Store the bias; the kernels on codes need one, of zeros if there is none.

    Next to activations of 16 bits it has 64 bits, as their sums.
    """
    if weight.params is None or x.params is None:
        channels = 0 if bias is not None else _channels(weight)
        values = torch.zeros(channels, dtype=torch.float32) if bias is None else bias.real()
        return writer.builder.constant("bias", values.detach().numpy())
    dtype = np.int32 if x.params.qtype.bits <= 8 else np.int64
    if bias is not None and bias.params is not None:
        codes = bias.data.detach().numpy().astype(dtype)
        index = writer.builder.constant(bias.name, codes, quantization(bias.params, 0))
        writer.store(bias, index, (0,))
        return index
    scale = (x.params.scale * weight.params.scale).reshape(-1)
    zero = torch.zeros_like(scale, dtype=torch.int64)
    params = replace(weight.params, scale=scale, zero_point=zero)
    zeros = np.zeros(_channels(weight), dtype)
    return writer.builder.constant(f"{weight.name}.bias", zeros, quantization(params, 0))


def _channels(weight: Stored) -> int:
    axis = 0 if weight.params is None or weight.params.axis is None else weight.params.axis
    return int(weight.data.shape[axis])


def _pool(writer: Writer, node: fx.Node, lists: int) -> tuple[Value, list[list[int]]]:
    args: tuple[Any, ...] = node.args
    numbers = [list(map(int, a)) for a in args[1 : 1 + lists]]
    x = writer.argument(node.args[0])
    assert isinstance(x, Value)
    if len(x.sizes) > 4:
        raise ExportError(f"{name(node)}: TFLite has no pool over three dimensions")
    if len(x.sizes) == 3:
        numbers = [[0 if i == 2 else 1, *n] for i, n in enumerate(numbers)]
    return _image(writer, x), numbers


def _pool_windows(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
) -> _Windows:
    """Return the windows of a pool; padded at the end only as much as a window covers."""
    ends = []
    for size, k, s, p in zip(x.sizes[2:], kernel, stride, padding, strict=True):
        used = overhang(window_count(size, k, s, 2 * p), size, k, s, p)
        ends.append(last_pad(size, k, s, p, p) if ceil_mode else max(used, 0))
    return _Windows(kernel, stride, [*padding, *ends])


def _write_pool(
    writer: Writer,
    node: fx.Node,
    kind: str,
    image: Value,
    padding: int,
    windows: _Windows,
    out: QuantParams | None = None,
    bounds: Bounds = NO_BOUNDS,
) -> Value:
    result = _image_result(writer, node, out if out is not None else image.params)
    options = {
        "padding": padding,
        "stride_h": windows.stride[0],
        "stride_w": windows.stride[1],
        "filter_height": windows.kernel[0],
        "filter_width": windows.kernel[1],
        "fused_activation_function": activation(bounds, out),
    }
    writer.emit(kind, [image], result, 1 if result.params is None else 2, **options)
    return _signal(writer, node, result)
