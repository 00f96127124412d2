"""Random models of one operator that XNNPACK takes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qtool.plugins.tflite.file import Model, Operator, PortNames, Quantization, Tensor

Array = np.ndarray[Any, Any]
Drawn = tuple[list[Tensor], Operator]


def model(generator: np.random.Generator, kind: str) -> tuple[Model, list[Array]]:
    """Return a model, and inputs for it."""
    tensors, op = KINDS[kind](Draw(generator))
    inputs = tuple(i for i in op.inputs if tensors[i].data is None)
    names = tuple(tensors[i].name for i in inputs)
    drawn = Model(tuple(tensors), (op,), inputs, op.outputs, names=PortNames(names, ("o",)))
    return drawn, [generator.integers(-128, 128, tensors[i].shape).astype(np.int8) for i in inputs]


class Draw:
    """Draws sizes, parameters and weights."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def size(self, low: int, high: int) -> int:
        return int(self.generator.integers(low, high))

    def ratio(self, spread: float) -> float:
        return float(np.exp(self.generator.uniform(-spread, spread)))

    def codes(self, name: str, shape: tuple[int, ...], scale: float | None = None) -> Tensor:
        scale = float(np.exp(self.generator.uniform(-6, 1))) if scale is None else scale
        zero = self.size(-128, 128)
        return Tensor(name, "int8", shape, quantization=_quantization([scale], [zero]))

    def activation(self) -> int:
        return int(self.generator.choice([0, 0, 1, 3]))


def _quantization(scales: Any, zeros: Any, axis: int = 0) -> Quantization:
    return Quantization(np.asarray(scales, np.float32), np.asarray(zeros, np.int64), axis)


def _scale(tensor: Tensor) -> float:
    return float(tensor.quantization.scale[0])


def _binary(kind: str) -> Callable[[Draw], Drawn]:
    def make(draw: Draw) -> Drawn:
        shape = (1, draw.size(1, 6), draw.size(1, 6), draw.size(1, 40))
        a = draw.codes("a", shape)
        b = draw.codes("b", shape, _scale(a) * draw.ratio(2.5))
        product = _scale(b) * 100 if kind == "MUL" else 1.0
        out = draw.codes("o", shape, _scale(a) * product * draw.ratio(2.0))
        options = {"fused_activation_function": draw.activation()}
        return [a, b, out], Operator(kind, (0, 1), (2,), options, 2)

    return make


def _unary(kind: str, fixed: tuple[float, int] | None = None, **options: Any) -> Any:
    def make(draw: Draw) -> Drawn:
        shape = (1, draw.size(1, 6), draw.size(1, 6), draw.size(1, 40))
        a = draw.codes("a", shape, float(np.exp(draw.generator.uniform(-5, -1.5))))
        out = draw.codes("o", shape, _scale(a) * draw.ratio(0.7))
        if fixed is not None:
            parameters = _quantization([fixed[0]], [fixed[1]])
            out = Tensor("o", "int8", shape, quantization=parameters)
        return [a, out], Operator(kind, (0,), (1,), options, 2)

    return make


def _mean(draw: Draw) -> Drawn:
    a = draw.codes("a", (1, draw.size(1, 12), draw.size(1, 12), draw.size(1, 64)))
    axes = Tensor("axes", "int32", (2,), data=np.array([1, 2], np.int32))
    out = draw.codes("o", (1, 1, 1, a.shape[3]), _scale(a) * draw.ratio(1.0))
    return [a, axes, out], Operator("MEAN", (0, 1), (2,), {"keep_dims": True}, 2)


def _layer(draw: Draw, x: Tensor, shape: tuple[int, ...], axis: int) -> tuple[list[Tensor], float]:
    """Return weight and bias, and a scale for the results."""
    channels = shape[axis]
    scales = np.exp(draw.generator.uniform(-7, -3, channels)).astype(np.float32)
    weight = draw.generator.integers(-127, 128, shape).astype(np.int8)
    zeros = np.zeros(channels, np.int64)
    products = np.float32(_scale(x)) * scales
    bias = draw.generator.integers(-20000, 20000, channels).astype(np.int32)
    depth = weight.size // channels
    spread = float(products.mean()) * 50 * np.sqrt(depth)
    return [
        Tensor("w", "int8", shape, data=weight, quantization=_quantization(scales, zeros, axis)),
        Tensor("b", "int32", (channels,), data=bias, quantization=_quantization(products, zeros)),
    ], spread * draw.ratio(1.0)


def _conv(draw: Draw, depthwise: bool = False) -> Drawn:
    channels, k, size = draw.size(1, 33), int(draw.generator.choice([1, 3])), draw.size(5, 10)
    x = draw.codes("a", (1, size, size, channels))
    results = channels if depthwise else draw.size(1, 33)
    shape = (1, k, k, channels) if depthwise else (results, k, k, channels)
    stored, scale = _layer(draw, x, shape, 3 if depthwise else 0)
    padding, stride = draw.size(0, 2), draw.size(1, 3)
    out_size = -(-(size if padding == 0 else size - k + 1) // stride)
    out = draw.codes("o", (1, out_size, out_size, results), scale)
    options = {
        "padding": padding,
        "stride_h": stride,
        "stride_w": stride,
        "dilation_h_factor": 1,
        "dilation_w_factor": 1,
        "fused_activation_function": draw.activation(),
    }
    kind = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    options |= {"depth_multiplier": 1} if depthwise else {}
    return [x, *stored, out], Operator(kind, (0, 1, 2), (3,), options, 3)


def _linear(draw: Draw) -> Drawn:
    x, results = draw.codes("a", (3, draw.size(1, 200))), draw.size(1, 50)
    stored, scale = _layer(draw, x, (results, x.shape[1]), 0)
    out = draw.codes("o", (3, results), scale)
    options = {"fused_activation_function": draw.activation()}
    return [x, *stored, out], Operator("FULLY_CONNECTED", (0, 1, 2), (3,), options, 12)


def _product(draw: Draw) -> Drawn:
    rows, inner, columns = (draw.size(1, 20) for _ in range(3))
    a = draw.codes("a", (2, 3, rows, inner))
    b = replace(draw.codes("b", (2, 3, inner, columns)), quantization=_quantization([0.1], [0]))
    out = draw.codes("o", (2, 3, rows, columns), 0.1 * _scale(a) * 40 * draw.ratio(2.0))
    return [a, b, out], Operator("BATCH_MATMUL", (0, 1), (2,), {}, 4)


def _transposed(draw: Draw) -> Drawn:
    x, results = draw.codes("a", (1, 4, 5, draw.size(1, 17))), draw.size(1, 17)
    stored, scale = _layer(draw, x, (results, 2, 2, x.shape[3]), 0)
    out = draw.codes("o", (1, 8, 10, results), scale)
    sizes = Tensor("sizes", "int32", (4,), data=np.array(out.shape, np.int32))
    options = {"padding": 1, "stride_h": 2, "stride_w": 2}
    tensors = [sizes, stored[0], x, stored[1], out]
    return tensors, Operator("TRANSPOSE_CONV", (0, 1, 2, 3), (4,), options, 3)


KINDS: Mapping[str, Callable[[Draw], Drawn]] = {
    "ADD": _binary("ADD"),
    "BATCH_MATMUL": _product,
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": lambda draw: _conv(draw, depthwise=True),
    "FULLY_CONNECTED": _linear,
    "LEAKY_RELU": _unary("LEAKY_RELU", alpha=0.1),
    "LOGISTIC": _unary("LOGISTIC", (1 / 256, -128)),
    "MEAN": _mean,
    "MUL": _binary("MUL"),
    "QUANTIZE": _unary("QUANTIZE"),
    "SUB": _binary("SUB"),
    "TANH": _unary("TANH", (1 / 128, 0)),
    "TRANSPOSE_CONV": _transposed,
}
"""Kind -> what draws its tensors and its operator."""
