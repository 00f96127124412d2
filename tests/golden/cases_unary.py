"""The golden cases of one-input operators; see cases.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from cases import Array, Case, Draw, all_codes, same_padding
from litert_model import ACTIVATIONS, Net, Quant

_RELU = {"relu": "RELU", "relu6": "RELU6", "relu_n1_to_1": "RELU_N1_TO_1"}
_KINDS = ("typical", "ties", "ratio")


def _unary(
    op: str, operator: str, x: Quant, out: Quant, codes: Array, options: str = "", **attrs: Any
) -> Case:
    net = Net()
    output = net.op(operator, [net.feed(codes, x)], net.tensor(codes.shape, out), options, **attrs)
    return Case(op, [x, out], [codes], net, output)


def pool(op: str) -> Iterator[Case]:
    d = Draw({"average_pool": 10, "max_pool": 11}[op])
    for i in range(14):
        dtype = ("int8", "uint8", "int16", "int8")[i % 4]
        x = d.quant(dtype)
        out = d.quant(dtype) if i == 11 else x  # the operator ignores that they differ
        kernel, stride = [d.pick(2, 3), d.pick(1, 2, 3)], [d.pick(1, 2), d.pick(1, 2)]
        codes = d.codes(dtype, 1, 6, d.pick(5, 7), d.pick(1, 3))
        size, same, act = list(codes.shape[1:3]), bool(i % 2), list(ACTIVATIONS)[i % 4]
        pads = same_padding(size, kernel, stride, [1, 1]) if same else [0] * 4
        outs = [
            (n + b + e - k) // s + 1
            for n, b, e, k, s in zip(size, pads[:2], pads[2:], kernel, stride, strict=True)
        ]
        net = Net()
        output = net.op(
            op.upper() + "_2D", [net.feed(codes, x)], net.tensor((1, *outs, codes.shape[3]), out),
            "Pool2DOptions", padding=0 if same else 1, filterHeight=kernel[0],
            filterWidth=kernel[1], strideH=stride[0], strideW=stride[1],
            fusedActivationFunction=ACTIVATIONS[act],
        )  # fmt: skip
        kwargs = {"kernel": kernel, "stride": stride, "pads": pads, "bounds": act}
        yield Case(op, [x, out], [codes], net, output, kwargs, channels_first=True)


def mean() -> Iterator[Case]:
    d = Draw(12)
    for i in range(16):
        dtype = ("int8", "uint8", "int16", "int8")[i % 4]
        kind = _KINDS[i % 3]
        x = d.quant(dtype, kind)
        out = x if i % 5 == 0 else d.quant(dtype, kind)
        codes = d.codes(dtype, 2, d.pick(2, 4, 7), d.pick(2, 5), 12)
        axes, keep = d.pick([1, 2], [3], [1], [0, 1, 2]), bool(i % 2)
        net = Net()
        names = [net.feed(codes, x), net.tensor((len(axes),), "int32", np.array(axes, np.int32))]
        shape = codes.mean(tuple(axes), keepdims=keep).shape
        output = net.op("MEAN", names, net.tensor(shape, out), "ReducerOptions", keepDims=keep)
        yield Case("mean", [x, out], [codes], net, output, {"axes": axes, "keep_dims": keep})


def quantize() -> Iterator[Case]:
    d = Draw(13)
    for i in range(9):
        dtype = ("int8", "uint8", "int16")[i % 3]
        out = d.quant(dtype, _KINDS[i % 2])
        steps = np.arange(-150, 150) * (0.5 if i % 2 else 1.0)
        noise = d.rng.uniform(-0.5, 0.5, steps.size) * (i % 2 == 0)
        values = ((steps + noise) * np.float64(out.scale)).astype(np.float32).reshape(1, -1)
        net = Net()
        output = net.op(
            "QUANTIZE",
            [net.feed(values, "float32")],
            net.tensor(values.shape, out),
            "QuantizeOptions",
        )
        yield Case("quantize", [out], [values], net, output)


def requantize() -> Iterator[Case]:
    d = Draw(14)
    pairs = [("int8", "int8"), ("uint8", "uint8"), ("uint8", "int8"), ("int8", "uint8")]
    pairs += [("int8", "int8"), ("int16", "int8"), ("int8", "int16"), ("int16", "int16")]
    for i in range(32):
        source, target = pairs[i % len(pairs)]
        x, out = d.quant(source, _KINDS[i % 3]), d.quant(target, _KINDS[i % 3])
        yield _unary("requantize", "QUANTIZE", x, out, all_codes(source), "QuantizeOptions")


def dequantize() -> Iterator[Case]:
    d = Draw(15)
    for i in range(6):
        x = d.quant(("int8", "uint8", "int16")[i % 3])
        net, codes = Net(), all_codes(x.dtype)
        output = net.op(
            "DEQUANTIZE",
            [net.feed(codes, x)],
            net.tensor(codes.shape, "float32"),
            "DequantizeOptions",
        )
        yield Case("dequantize", [x], [codes], net, output)


def relu() -> Iterator[Case]:
    d = Draw(16)
    for i in range(18):
        dtype = "uint8" if i % 4 == 3 else "int8"
        x, out = d.quant(dtype, _KINDS[i % 3]), d.quant(dtype, _KINDS[i % 3])
        name = list(_RELU)[i % 3]
        case = _unary("relu", _RELU[name], x, out, all_codes(dtype))
        case.kwargs = {"bounds": name}
        yield case


def leaky_relu() -> Iterator[Case]:
    d = Draw(17)
    for i in range(15):
        dtype = ("int8", "uint8", "int16")[i % 3]
        kind = _KINDS[i // 2 % 3]
        x, out = d.quant(dtype, kind), d.quant(dtype, kind)
        alpha = float(np.float32(d.pick(0.01, 0.1, 0.25, 1.5)))
        case = _unary(
            "leaky_relu", "LEAKY_RELU", x, out, all_codes(dtype), "LeakyReluOptions", alpha=alpha
        )
        case.kwargs = {"alpha": alpha}
        yield case


def prelu() -> Iterator[Case]:
    d = Draw(18)
    for i in range(6):
        dtype = "uint8" if i % 3 == 2 else "int8"
        x, slope, out = (d.quant(dtype, _KINDS[i % 2]) for _ in range(3))
        codes, slopes = d.codes(dtype, 1, 8, 8, 3), d.codes(dtype, 1, 1, 3)
        net = Net()
        names = [net.feed(codes, x), net.tensor(slopes.shape, slope, slopes)]
        output = net.op("PRELU", names, net.tensor(codes.shape, out))
        yield Case("prelu", [x, slope, out, slopes], [codes], net, output)


def hard_swish() -> Iterator[Case]:
    d = Draw(19)
    for i in range(20):
        dtype = "uint8" if i % 4 == 3 else "int8"
        x, out = d.quant(dtype, _KINDS[i % 2]), d.quant(dtype, _KINDS[i % 2])
        if i > 17:  # refused from a ratio of 128 on
            x = Quant(dtype, np.float32(out.scale) * np.float32(128 if i == 18 else 127.9), x.zero)
        yield _unary("hard_swish", "HARD_SWISH", x, out, all_codes(dtype), "HardSwishOptions")


def table(op: str) -> Iterator[Case]:
    d = Draw({"sigmoid": 20, "tanh": 21, "gelu": 22}[op])
    operator = {"sigmoid": "LOGISTIC", "tanh": "TANH", "gelu": "GELU"}[op]
    for i in range(20):
        dtype = ("int8", "uint8", "int8", "int16")[i % 4]
        if dtype == "int16" and op == "gelu":
            dtype = "int8"
        scale = 2.0**-12 if dtype == "int16" and i % 8 == 3 else d.scale()
        if dtype == "int16":
            scale = min(float(scale), 0.004)
        x = Quant(dtype, np.float32(scale), d.quant(dtype).zero)
        out = d.quant(dtype)
        if dtype == "int16":
            out = Quant(dtype, np.float32(1 / 32768), 0)
        elif op == "sigmoid" and i != 17:  # any other output scale is refused
            out = Quant(dtype, np.float32(1 / 256), -128 if dtype == "int8" else 0)
        options = {"approximate": bool(i % 2)} if op == "gelu" else {}
        case = _unary(
            op, operator, x, out, all_codes(dtype), "GeluOptions" if options else "", **options
        )
        if options:
            case.kwargs = {"approximate": "tanh" if i % 2 else "none"}
        yield case


def softmax() -> Iterator[Case]:
    d = Draw(23)
    for i in range(16):
        dtype = ("int8", "uint8", "int8", "int16")[i % 4]
        beta = float(np.float32(d.pick(1.0, 1.0, 0.5, 2.3)))
        x = Quant(
            dtype, d.scale() * np.float32(0.003 if dtype == "int16" else 1), d.quant(dtype).zero
        )
        out = Quant(dtype, np.float32(1 / 256), -128 if dtype == "int8" else 0)
        if dtype == "int16":
            out = Quant(dtype, np.float32(1 / 32768), 0)
        codes = d.codes(dtype, 12, d.pick(2, 10, 21))
        if i >= 12:  # equal logits: at 512 of them the runtime aborts
            codes = np.zeros((1, (511, 512, 100, 1000)[i - 12]), dtype)
        case = _unary("softmax", "SOFTMAX", x, out, codes, "SoftmaxOptions", beta=beta)
        case.kwargs = {"beta": beta}
        yield case
    refused = Quant("int8", np.float32(1 / 128), -128)
    yield _unary(
        "softmax",
        "SOFTMAX",
        d.quant("int8"),
        refused,
        all_codes("int8"),
        "SoftmaxOptions",
        beta=1.0,
    )


def pad() -> Iterator[Case]:
    d = Draw(24)
    for i in range(6):
        x = d.quant(("int8", "uint8", "int16")[i % 3])
        codes = d.codes(x.dtype, 2, 3, 2)
        pads = d.rng.integers(0, 3, (3, 2)).astype(np.int32)
        shape = [n + int(p.sum()) for n, p in zip(codes.shape, pads, strict=True)]
        kwargs: dict[str, Any] = {"pads": [*map(int, pads[:, 0]), *map(int, pads[:, 1])]}
        net = Net()
        names = [net.feed(codes, x), net.tensor(pads.shape, "int32", pads)]
        if i % 2:
            fill = d.codes(x.dtype, 1)
            kwargs["value"] = int(fill[0])
            names.append(net.tensor((1,), x, fill))
        operator = "PADV2" if i % 2 else "PAD"
        output = net.op(
            operator, names, net.tensor(shape, x), operator.title().replace("v", "V") + "Options"
        )
        yield Case("pad", [x, x], [codes], net, output, kwargs)
