"""The numerics profiles of TFLite: its reference kernels, its optimized ones, XNNPACK, and TFLM."""

from __future__ import annotations

from functools import partial

from qtool.backends.kernels import codes
from qtool.backends.kernels.accumulate import (
    conv_accumulator,
    conv_transpose_accumulator,
    linear_accumulator,
    matmul_accumulator,
)
from qtool.backends.kernels.products import Scale, layer, product
from qtool.backends.profiles import Binder, Profile
from qtool.plugins.tflite.kernels import activation as tflite_activation
from qtool.plugins.tflite.kernels import concat as tflite_concat
from qtool.plugins.tflite.kernels import dynamic as tflite_dynamic
from qtool.plugins.tflite.kernels import elementwise as tflite_elementwise
from qtool.plugins.tflite.kernels import lookup_tables as tflite_table
from qtool.plugins.tflite.kernels import micro as tflite_micro
from qtool.plugins.tflite.kernels import optimized as tflite_optimized
from qtool.plugins.tflite.kernels import pool as tflite_pool
from qtool.plugins.tflite.kernels import quantize as tflite_quantize
from qtool.plugins.tflite.kernels import scaling as tflite_scaling
from qtool.plugins.tflite.kernels import softmax as tflite_softmax
from qtool.plugins.tflite.kernels import xnnpack


def _transposed(scale: Scale) -> Binder:
    return layer(conv_transpose_accumulator, scale, axis=1)


_TFLITE: dict[str, Binder] = {
    "add": tflite_elementwise.add,
    "average_pool": tflite_pool.average_pool,
    "concat": tflite_concat.concat,
    "conv": layer(conv_accumulator, tflite_scaling.scale_by_channel),
    "conv_transpose": _transposed(tflite_scaling.scale_by_channel),
    "dequantize": tflite_quantize.dequantize,
    "dynamic_linear": tflite_dynamic.dynamic_linear,
    "gelu": tflite_table.gelu,
    "global_average_pool": tflite_pool.global_average_pool,
    "hard_swish": tflite_activation.hard_swish,
    "leaky_relu": tflite_activation.leaky_relu,
    "linear": layer(linear_accumulator, tflite_scaling.scale_linear),
    "linear_float": layer(linear_accumulator, tflite_scaling.scale_in_float64),
    "matmul": product(matmul_accumulator, tflite_scaling.scale_product),
    "max_pool": tflite_pool.max_pool,
    "mean": tflite_pool.mean,
    "mul": tflite_elementwise.mul,
    "pad": codes.pad,
    "passthrough": codes.passthrough,
    "prelu": tflite_activation.prelu,
    "quantize": tflite_quantize.quantize,
    "relu": tflite_activation.relu,
    "requantize": tflite_quantize.requantize,
    "sigmoid": tflite_table.logistic,
    "softmax": tflite_softmax.softmax,
    "sub": tflite_elementwise.sub,
    "tanh": tflite_table.tanh,
}

_TFLITE_2 = {**_TFLITE, "linear": _TFLITE["linear_float"]}
_TFLITE_MICRO: dict[str, Binder] = {  # of other precision, which shows in int16 codes
    **_TFLITE,
    "leaky_relu": partial(tflite_activation.leaky_relu, in_float64=True),
    "mul": partial(tflite_elementwise.mul, in_float64=True),
    "sigmoid": tflite_micro.logistic,
    "softmax": partial(tflite_softmax.softmax, in_float64=False),
    "tanh": tflite_micro.tanh,
}
_TFLITE_OPTIMIZED: dict[str, Binder] = {
    **_TFLITE_2,
    "conv_transpose": _transposed(tflite_optimized.scale_transposed),
    "quantize": tflite_optimized.quantize,
}
_XNNPACK: dict[str, Binder] = {
    **_TFLITE_2,
    "add": xnnpack.add,
    "conv": layer(conv_accumulator, xnnpack.scale_sums),
    "conv_transpose": _transposed(xnnpack.scale_sums),
    "global_average_pool": partial(tflite_pool.global_average_pool, mean_over=xnnpack.mean),
    "leaky_relu": xnnpack.leaky_relu,
    "linear": layer(linear_accumulator, xnnpack.scale_sums),
    "matmul": product(matmul_accumulator, xnnpack.scale_sums),
    "mean": xnnpack.mean,
    "mul": xnnpack.mul,
    "quantize": xnnpack.quantize,
    "requantize": xnnpack.requantize,
    "sub": xnnpack.sub,
}

_tflite = partial(Profile, family="tflite", signed=True)

REFERENCE = _tflite("tflite", _TFLITE)
REFERENCE_2 = _tflite("tflite-2", _TFLITE_2)
MICRO = _tflite("tflite-micro", _TFLITE_MICRO)
OPTIMIZED = _tflite("tflite-optimized", _TFLITE_OPTIMIZED)
XNNPACK = _tflite("xnnpack", _XNNPACK)
