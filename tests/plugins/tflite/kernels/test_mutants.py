"""Kernels with one rounding rule changed: the recorded outputs must tell each of them apart."""

import pytest
import torch

from qtool.backends.kernels import accumulate
from qtool.backends.kernels import fixed_point as fp
from qtool.backends.kernels.params import per_tensor
from qtool.backends.profiles import Profile, profile
from qtool.core.quant_params import torch_dtype
from qtool.plugins.tflite.kernels import activation, bounds, concat, elementwise, quantize, scaling
from tests.backends.kernels.golden import mismatches

REFERENCE = profile("tflite").binders


def single_rounding(x, by):
    shift = 31 - by.exponent
    return (x * by.mantissa + (torch.ones_like(shift) << (shift - 1))) >> shift


def ties_up(x, exponent):
    n = torch.as_tensor(exponent)
    return (x + ((torch.ones_like(n) << n) >> 1)) >> n


def ties_away_in_the_high_multiply(a, b):
    product = a * b
    return (torch.sign(product) * ((product.abs() + (1 << 30)) >> 31)).clamp(max=2**31 - 1)


def truncating_high_multiply(a, b):
    return (a * b) >> 31


def floor_division(x, by):
    return torch.div(x, torch.as_tensor(by), rounding_mode="floor")


def half_to_even(x):
    return torch.round(x.to(torch.float64))


PATCHES = {
    "single rounding": (
        (fp, "multiply_by_quantized_multiplier", single_rounding),
        ["add", "sub", "mul", "conv", "conv_depthwise", "linear", "mean", "requantize", "relu"],
    ),
    "ties up instead of away": (
        (fp, "rounding_divide_by_pot", ties_up),
        ["add", "sub", "mul", "conv", "conv_depthwise", "linear", "requantize", "hard_swish"],
    ),
    "ties away in the first rounding": (
        (fp, "saturating_rounding_doubling_high_mul", ties_away_in_the_high_multiply),
        ["requantize", "relu", "leaky_relu"],
    ),
    "first rounding truncates": (
        (fp, "saturating_rounding_doubling_high_mul", truncating_high_multiply),
        ["mul", "requantize", "relu", "leaky_relu", "softmax"],
    ),
    "int16 sums rounded twice": (
        (fp, "multiply_wide", fp.multiply_by_quantized_multiplier),
        ["conv", "conv_depthwise", "linear"],
    ),
    "averages round down": ((fp, "divide_half_away", floor_division), ["average_pool"]),
    "float quantize to even": ((quantize, "round_half_away_tensor", half_to_even), ["quantize"]),
    "float concat to even": ((concat, "round_half_away_tensor", half_to_even), ["concat"]),
    "float linear to even": ((scaling, "round_half_away_tensor", half_to_even), ["linear_float"]),
    "factor of MUL in double": ((elementwise, "f32", float), ["mul"]),
    "factor of RELU in double": ((activation, "f32", float), ["relu", "leaky_relu"]),
    "factor of FULLY_CONNECTED in double": ((scaling, "f32", float), ["linear"]),
    "bound of RELU6 rounds down": ((bounds, "round_half_away", int), ["relu"]),
}


@pytest.mark.parametrize(
    ("mutant", "group"),
    [(name, group) for name, (_, groups) in PATCHES.items() for group in groups],
)
def test_is_caught(mutant, group, monkeypatch):
    (module, name, replacement), _ = PATCHES[mutant]
    monkeypatch.setattr(module, name, replacement)
    assert mismatches(group)


def float64_add(sign):
    def bind(a, b, out, *, bounds, pot_scale_int16=True):
        (scale_a, zero_a), (scale_b, zero_b) = per_tensor(a, "a"), per_tensor(b, "b")
        scale, zero = per_tensor(out, "out")
        limits = elementwise.code_bounds(out, bounds)

        def kernel(x, y):
            real = (x.double() - zero_a) * scale_a + sign * (y.double() - zero_b) * scale_b
            rounded = quantize.round_half_away_tensor(real / scale) + zero
            return elementwise.finish(rounded, out, limits)

        return kernel

    return bind


def zero_point_inside_add(a, b, out, *, bounds, pot_scale_int16=True):
    """The output's zero point joins before the last rounding instead of after it."""
    shifted = fp.quantize_multiplier(
        2 * max(float(a.scale), float(b.scale)) / (2**20 * float(out.scale))
    )
    exact = fp.multiply_by_quantized_multiplier

    def inside(x, by):
        if int(by.exponent) != int(shifted.exponent) or int(by.mantissa) != int(shifted.mantissa):
            return exact(x, by)
        high = fp.saturating_rounding_doubling_high_mul(x, by.mantissa)
        zero = int(out.zero_point)
        return fp.rounding_divide_by_pot(high + (zero << -by.exponent), -by.exponent) - zero

    kernel = elementwise.add(a, b, out, bounds=bounds, pot_scale_int16=pot_scale_int16)

    def run(x, y):
        fp.multiply_by_quantized_multiplier = inside
        try:
            return kernel(x, y)
        finally:
            fp.multiply_by_quantized_multiplier = exact

    return run


def zero_point_inside_quantize(out):
    scale, zero = per_tensor(out, "out")

    def kernel(x):
        codes = quantize.round_half_away_tensor(x / torch.tensor(scale) + zero)
        return codes.clamp(out.qtype.qmin, out.qtype.qmax).to(torch_dtype(out.qtype))

    return kernel


def padding_without_zero_point(x, w, out, weight, bias=None, *, pads=0, **rest):
    """Pads the codes with 0 instead of the zero point."""
    kernel = REFERENCE["conv"](x, w, out, weight, bias, **rest)
    return lambda codes: kernel(accumulate.pad_spatial(codes, pads))


BINDERS = {
    "float64 imitation of ADD": ("add", float64_add(1), "add"),
    "float64 imitation of SUB": ("sub", float64_add(-1), "sub"),
    "zero point before the rounding of ADD": ("add", zero_point_inside_add, "add"),
    "zero point before the rounding of QUANTIZE": (
        "quantize",
        zero_point_inside_quantize,
        "quantize",
    ),
    "padding with code 0": ("conv", padding_without_zero_point, "conv"),
    "newer FULLY_CONNECTED for the older": ("linear", REFERENCE["linear_float"], "linear"),
    "older FULLY_CONNECTED for the newer": ("linear_float", REFERENCE["linear"], "linear_float"),
}


@pytest.mark.parametrize("mutant", BINDERS)
def test_binder_is_caught(mutant):
    op, binder, group = BINDERS[mutant]
    assert mismatches(group, Profile(mutant, {**profile("tflite").binders, op: binder}))


def test_without_a_mutant_nothing_differs():
    groups = {g for _, groups in PATCHES.values() for g in groups} | {
        b[2] for b in BINDERS.values()
    }
    assert [line for group in sorted(groups) for line in mismatches(group)] == []
