"""The golden cases: what is asked of LiteRT, and the same in the words of `Profile.bind`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from litert_model import ACTIVATIONS, Net, Quant

Array = np.ndarray
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


@dataclass
class Case:
    """One binding and one call. `args` may hold Quant, lists of Quant, arrays and None."""

    op: str
    args: list[Any]
    inputs: list[Array]
    net: Net
    output: int
    kwargs: dict[str, Any] = field(default_factory=dict)
    channels_first: bool = False  # recorded as [N, C, H, W], LiteRT runs [N, H, W, C]


class Draw:
    """Random but reproducible parameters and codes."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def scale(self, kind: str = "typical") -> np.float32:
        """'ties' gives powers of two, 'ratio' small multiples of one base, else log-uniform."""
        if kind == "ties":
            return np.float32(2.0 ** self.rng.integers(-7, -2))
        if kind == "ratio":
            return np.float32(0.0073) * np.float32(self.rng.integers(1, 12))
        return np.float32(np.exp(self.rng.uniform(-6, -1)))

    def quant(self, dtype: str, kind: str = "typical", zero: int | None = None) -> Quant:
        low, high = RANGES[dtype]
        drawn = 0 if dtype == "int16" else int(self.rng.integers(low, high + 1))
        return Quant(dtype, self.scale(kind), drawn if zero is None else zero)

    def codes(self, dtype: str, *shape: int) -> Array:
        low, high = RANGES[dtype]
        return self.rng.integers(low, high + 1, shape).astype(dtype)

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]


def all_codes(dtype: str) -> Array:
    low, high = RANGES[dtype]
    step = 1 if high < 256 else 127
    return np.arange(low, high + 1, step).astype(dtype).reshape(1, -1)


def near_ties(
    d: Draw, a: Quant, b: Quant, out: Quant, sign: int, count: int
) -> tuple[Array, Array]:
    """The pairs of 8-bit codes whose real result lies nearest to the middle of two codes."""
    low, high = RANGES[a.dtype]
    grid = np.arange(low, high + 1)
    x, y = (g.reshape(-1) for g in np.meshgrid(grid, grid))
    real_a, real_b = (x - a.zero) * np.float64(a.scale), (y - b.zero) * np.float64(b.scale)
    real = (real_a * real_b if sign == 0 else real_a + sign * real_b) / np.float64(out.scale)
    inside = np.abs(real + out.zero - (low + high) / 2) < 130
    order = np.argsort(
        np.where(inside, np.abs(real - np.floor(real) - 0.5), 1) + 1e-6 * d.rng.random(x.size)
    )
    chosen = np.concatenate([order[: count // 2], d.rng.integers(0, x.size, count // 2)])
    return x[chosen].astype(a.dtype), y[chosen].astype(a.dtype)


def same_padding(
    sizes: list[int], kernel: list[int], stride: list[int], dil: list[int]
) -> list[int]:
    begin, end = [], []
    for n, k, s, d in zip(sizes, kernel, stride, dil, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        begin.append(total // 2)
        end.append(total - total // 2)
    return begin + end


# ------------------------------------------------------------------------------- elementwise


def binary(op: str) -> Iterator[Case]:
    d = Draw({"add": 1, "sub": 2, "mul": 3}[op])
    sign = {"add": 1, "sub": -1, "mul": 0}[op]
    activations = list(ACTIVATIONS)
    for i in range(24):
        dtype = "uint8" if i % 4 == 3 else "int8"
        kind = ("typical", "ties", "ratio")[i % 3]
        a, b, out = (d.quant(dtype, kind) for _ in range(3))
        if op == "mul" and kind != "typical":  # so that products really fall on ties
            out = Quant(
                dtype, np.float32(a.scale * b.scale) * np.float32(d.pick(2, 6, 32, 96)), out.zero
            )
        x, y = near_ties(d, a, b, out, sign, 512)
        yield _binary(op, a, b, out, x, y, activations[i % 4])
    for i in range(4):
        a, b, out = (d.quant("int16", "ties" if i % 2 else "typical") for _ in range(3))
        x, y = d.codes("int16", 256), d.codes("int16", 256)
        if op != "mul" and i % 2:
            out = a
            b = Quant("int16", a.scale / np.float32(2 ** (i - 1)))
        yield _binary(op, a, b, out, x, y, "none", pot=bool(i % 2))
    for _ in range(24 if op == "mul" else 0):  # one product within 2**-24 of a tie
        a, b, out = (d.quant("int8") for _ in range(3))
        product = int(d.rng.integers(100, 160))  # the factor is in (1/2, 1): one rounding only
        half = int(d.rng.integers(product // 2 + 2, product - 2)) + 0.5
        scale = float(a.scale) * float(b.scale) * product / half
        out = Quant("int8", np.float32(scale), int(d.rng.integers(-40, 40)))
        yield _binary(op, a, b, out, *near_ties(d, a, b, out, sign, 64), "none")
    one = np.float32(1)
    x = y = d.codes("int8", 8)
    if op != "mul":
        for ratio in (2**19, 2**19 * (1 - 2**-20)):  # refused, and the last that is not
            big = Quant("int8", one * np.float32(ratio))
            yield _binary(op, big, Quant("int8", one), Quant("int8", one), x, y, "none")
        wide = [Quant("int16", np.float32(2.0**-e)) for e in (3, 4, 5)]
        yield _binary(op, *wide, x.astype("int16"), y.astype("int16"), "none", pot=True)


def _binary(
    op: str, a: Quant, b: Quant, out: Quant, x: Array, y: Array, act: str, pot: bool | None = None
) -> Case:
    net = Net()
    attrs: dict[str, Any] = {"fusedActivationFunction": ACTIVATIONS[act]}
    kwargs: dict[str, Any] = {"bounds": act}
    if pot is not None and op != "mul":
        attrs["potScaleInt16"] = kwargs["pot_scale_int16"] = pot
    names = [net.feed(x, a), net.feed(y, b)]
    output = net.op(
        op.upper(), names, net.tensor(x.shape, out), op.capitalize() + "Options", **attrs
    )
    return Case(op, [a, b, out], [x, y], net, output, kwargs)


def concat() -> Iterator[Case]:
    d = Draw(4)
    for i in range(20):
        dtype = ("uint8", "uint8", "int8", "int16")[i % 4]
        out = d.quant(dtype, "ties" if i % 3 else "typical")
        parts = [
            out if j == 1 else d.quant(dtype, "ties" if i % 3 else "typical") for j in range(3)
        ]
        if dtype == "int8" and i >= 12:
            parts = [out] * 3
        axis = int(d.rng.integers(-2, 2))
        yield _concat(parts, out, [_along(all_codes(dtype), axis) for _ in parts], axis, False)
    for i in range(8):
        out = d.quant("int8", "ties" if i % 2 else "typical")
        parts = [
            out if j == 1 else d.quant("int8", "ties" if i % 2 else "typical") for j in range(3)
        ]
        yield _concat(parts, out, [all_codes("int8")] * 3, 1, True)


def _along(row: Array, axis: int) -> Array:
    return row if axis in (-1, 1) else row[:, :256].T.copy()


def _concat(parts: list[Quant], out: Quant, xs: list[Array], axis: int, requantize: bool) -> Case:
    net = Net()
    names = [net.feed(x, p) for x, p in zip(xs, parts, strict=True)]
    if requantize:
        names = [
            n if p is out else net.op("QUANTIZE", [n], net.tensor(x.shape, out), "QuantizeOptions")
            for n, p, x in zip(names, parts, xs, strict=True)
        ]
    shape = np.concatenate(xs, axis).shape
    output = net.op(
        "CONCATENATION", names, net.tensor(shape, out), "ConcatenationOptions", axis=axis
    )
    return Case("concat", [parts, out], xs, net, output, {"axis": axis, "requantize": requantize})


# ------------------------------------------------------------------------------ convolutions


def _weights(d: Draw, channels: int, kind: str, per_channel: bool, axis: int) -> Quant:
    n = channels if per_channel else 1
    scales = np.array([d.scale(kind) / np.float32(4) for _ in range(n)], np.float32)
    return Quant("int8", scales if per_channel else scales[0], 0, axis if per_channel else None)


def _bias(x: Quant, w: Quant) -> Quant:
    """int16 activations take int64 biases, and then the int64 accumulators."""
    return Quant(
        "int64" if x.dtype == "int16" else "int32",
        np.float32(x.scale) * np.asarray(w.scale, np.float32),
        0,
        0,
    )


def _output(d: Draw, x: Quant, w: Quant, terms: int, kind: str) -> Quant:
    """Output parameters; but for 'typical' the sums are small multiples of half an output step."""
    product = np.float32(x.scale) * np.float32(np.max(w.scale))
    steps = {"ties": d.pick(2, 4, 8), "ratio": d.pick(4 / 3, 8 / 3, 8 / 5, 16 / 5, 16 / 7)}.get(
        kind, np.sqrt(terms) * 45
    )
    zero = int(d.rng.integers(-60, 61))
    return Quant(x.dtype, product * np.float32(steps), 0 if x.dtype == "int16" else zero)


def _weight(d: Draw, kind: str, *shape: int) -> Array:
    limit = 127 if kind == "typical" else 3
    return d.rng.integers(-limit, limit + 1, shape).astype(np.int8)


def _bias_codes(d: Draw, kind: str, channels: int) -> Array:
    limit = 3000 if kind == "typical" else 20
    return d.rng.integers(-limit, limit + 1, channels).astype(np.int32)


def _stored(bias: Array, x: Quant) -> Array:
    return bias.astype(np.int64) if x.dtype == "int16" else bias


def conv(depthwise: bool) -> Iterator[Case]:
    d = Draw(6 if depthwise else 5)
    for i in range(18):
        kind = "ties" if i % 2 else "typical"
        kernel, stride = [d.pick(1, 2, 3), d.pick(1, 3)], [d.pick(1, 2), d.pick(1, 2)]
        dil = [1, 1] if max(stride) > 1 else [d.pick(1, 2), d.pick(1, 2)]
        channels, size = d.pick(1, 3, 4), [d.pick(5, 6), d.pick(5, 7)]
        groups = channels if depthwise else (2 if i % 5 == 4 else 1)
        if not depthwise:
            channels *= groups
        outs = channels * d.pick(1, 2) if depthwise else groups * d.pick(1, 3, 5)
        dtype = "int16" if i > 13 else "int8"
        x = d.quant(dtype, kind)
        w = _weights(d, outs, kind, i % 3 != 0, 3 if depthwise else 0)
        inner = 1 if depthwise else channels // groups
        out = _output(d, x, w, kernel[0] * kernel[1] * inner, kind)
        weight = _weight(d, kind, outs, inner, *kernel)
        bias = _bias_codes(d, kind, outs)
        geometry = {"kernel": kernel, "stride": stride, "dilation": dil, "groups": groups}
        yield _conv(x, w, out, weight, bias, d.codes(dtype, 1, *size, channels), geometry, i)


def _conv(
    x: Quant,
    w: Quant,
    out: Quant,
    weight: Array,
    bias: Array,
    codes: Array,
    g: dict[str, Any],
    i: int,
) -> Case:
    kernel, stride, dil = g["kernel"], g["stride"], g["dilation"]
    depthwise = w.axis == 3 or (weight.shape[1] == 1 and g["groups"] == codes.shape[3])
    size, same = list(codes.shape[1:3]), i % 3 < 2
    pads = same_padding(size, kernel, stride, dil) if same else [0] * 4
    act = list(ACTIVATIONS)[i // 2 % 4]
    outs = [
        (n + b + e - (k - 1) * dd - 1) // s + 1
        for n, b, e, k, s, dd in zip(size, pads[:2], pads[2:], kernel, stride, dil, strict=True)
    ]
    net = Net()
    # [O, I, H, W] -> [O, H, W, I], or [1, H, W, O] where each output has one input channel
    stored = weight.transpose(1, 2, 3, 0) if depthwise else weight.transpose(0, 2, 3, 1)
    quant = Quant(w.dtype, w.scale, w.zero, 3 if depthwise else 0)
    names = [net.feed(codes, x), net.tensor(stored.shape, quant, stored)]
    names.append(net.tensor(bias.shape, _bias(x, w), _stored(bias, x)))
    attrs: dict[str, Any] = {
        "padding": 0 if same else 1,
        "strideH": stride[0],
        "strideW": stride[1],
        "dilationHFactor": dil[0],
        "dilationWFactor": dil[1],
        "fusedActivationFunction": ACTIVATIONS[act],
    }
    if depthwise:
        attrs["depthMultiplier"] = weight.shape[0] // codes.shape[3]
    name = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    options = "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions"
    output = net.op(name, names, net.tensor((1, *outs, weight.shape[0]), out), options, **attrs)
    kwargs = {"stride": stride, "pads": pads, "dilation": dil, "groups": g["groups"], "bounds": act}
    weight_quant = Quant(w.dtype, w.scale, w.zero, None if w.axis is None else 0)
    return Case("conv", [x, weight_quant, out, weight, bias], [codes], net, output, kwargs, True)


def conv_transpose() -> Iterator[Case]:
    d = Draw(7)
    for i in range(6):
        kind = "ties" if i % 2 else "typical"
        x, kernel, stride, size = (
            d.quant("int8", kind),
            [3, d.pick(2, 3)],
            [2, d.pick(1, 2)],
            [3, 4],
        )
        w = _weights(d, 3, kind, i % 3 != 0, 0)
        out = _output(d, x, w, 12, kind)
        weight = _weight(d, kind, 4, 3, *kernel)  # [I, O, H, W]
        bias = _bias_codes(d, kind, 3)
        codes = d.codes("int8", 1, *size, 4)
        outs = [(n - 1) * s + k for n, s, k in zip(size, stride, kernel, strict=True)]
        net = Net()
        stored = weight.transpose(1, 2, 3, 0)
        names = [net.tensor((4,), "int32", np.array([1, *outs, 3], np.int32))]
        names += [net.tensor(stored.shape, w, stored), net.feed(codes, x)]
        names.append(net.tensor(bias.shape, _bias(x, w), bias))
        output = net.op(
            "TRANSPOSE_CONV", names, net.tensor((1, *outs, 3), out), "TransposeConvOptions",
            padding=1, strideH=stride[0], strideW=stride[1],
        )  # fmt: skip
        args = [x, Quant("int8", w.scale, 0, None if w.axis is None else 1), out, weight, bias]
        yield Case("conv_transpose", args, [codes], net, output, {"stride": stride}, True)


def linear(op: str) -> Iterator[Case]:
    d = Draw(8)
    for i in range(18 if op == "linear_float" else 22):
        kind = ("typical", "ties", "ratio")[i % 3]
        dtype = "int16" if i > 17 else "int8"
        x, outs, inner = d.quant(dtype, kind), d.pick(3, 10, 17), d.pick(4, 16, 33)
        w = _weights(d, outs, kind, i % 9 > 5, 0)
        out = _output(d, x, w, inner, kind)
        weight = _weight(d, kind, outs, inner)
        bias = None if i % 5 == 3 else _bias_codes(d, kind, outs)
        codes, act = d.codes(dtype, 24, inner), list(ACTIVATIONS)[i % 4]
        net = Net()
        names = [net.feed(codes, x), net.tensor(weight.shape, w, weight)]
        stored = None if bias is None else net.tensor(bias.shape, _bias(x, w), _stored(bias, x))
        names.append(-1 if stored is None else stored)
        output = net.op(
            "FULLY_CONNECTED", names, net.tensor((24, outs), out), "FullyConnectedOptions",
            fusedActivationFunction=ACTIVATIONS[act],
        )  # fmt: skip
        yield Case(op, [x, w, out, weight, bias], [codes], net, output, {"bounds": act})


def matmul() -> Iterator[Case]:
    d = Draw(9)
    for i in range(6):
        kind = "ties" if i % 2 else "typical"
        a, b = d.quant("int8", kind), d.quant("int8", kind)
        out = _output(d, a, b, 20, kind)
        x, y = d.codes("int8", 2, 3, 5, 20), d.codes("int8", 2, 3, 20, 7)
        net = Net()
        names = [net.feed(x, a), net.feed(y, b)]
        output = net.op("BATCH_MATMUL", names, net.tensor((2, 3, 5, 7), out), "BatchMatMulOptions")
        yield Case("matmul", [a, b, out], [x, y], net, output)
