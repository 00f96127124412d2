"""How each operator on codes is bound to a kernel of the engine: one row per operator.

Kernels take channels first; images of the file are [N, H, W, C].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from qtool.backends.kernels.params import Kernel
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.plugins.tflite.engine.call import Call, params_of

Bind = Callable[[Call], Kernel]


def _image(kernel: Kernel) -> Kernel:
    """Return a kernel of channels first for an image of channels last."""

    def run(codes: torch.Tensor) -> torch.Tensor:
        return kernel(codes.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()

    return run


def _pads(call: Call, kernel: Sequence[int], dilation: Sequence[int]) -> Callable[..., list[int]]:
    """Return a function from the sizes of an image to its pads, all begins, then all ends."""
    stride = _stride(call)

    def pads(sizes: Sequence[int]) -> list[int]:
        if not call.is_same:
            return [0, 0, 0, 0]
        begins, ends = [], []
        for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            begins.append(total // 2)
            ends.append(total - total // 2)
        return [*begins, *ends]

    return pads


def _stride(call: Call) -> list[int]:
    stride = [int(call.option("stride_h")), int(call.option("stride_w"))]
    if min(stride) < 1:
        raise KernelError(f"{call.operator.name} has the stride {stride}")
    return stride


def _by_size(bind: Callable[[list[int]], Kernel], pads: Callable[..., list[int]]) -> Kernel:
    """Return a kernel that is bound for the pads of each size of image."""
    bound: dict[tuple[int, ...], Kernel] = {}

    def run(codes: torch.Tensor) -> torch.Tensor:
        edges = tuple(pads(codes.shape[2:]))
        if edges not in bound:
            bound[edges] = bind(list(edges))
        return bound[edges](codes)

    return run


def _bias(call: Call, position: int) -> torch.Tensor | None:
    tensor = call.tensor(position)
    if tensor is None:
        return None
    if tensor.type not in ("int32", "int64"):  # the second next to activations of 16 bits
        raise KernelError(
            f"bias '{tensor.name}' is {tensor.type}; the kernels take int32, next to int16 int64"
        )
    return call.stored(position)


def _conv(call: Call) -> Kernel:
    weight = call.stored(1)
    if weight.dim() != 4:
        raise KernelError(f"its weight has {weight.dim()} dimensions, not 4")
    depthwise = call.operator.name == "DEPTHWISE_CONV_2D"
    x = call.input(0).shape
    codes = weight.permute(3, 0, 1, 2) if depthwise else weight.permute(0, 3, 1, 2)
    groups = x[3] if depthwise else x[3] // max(codes.shape[1], 1)
    dilation = [int(call.option(f"dilation_{a}_factor", 1)) for a in "hw"]
    params = params_of(call.input(1), 0)

    def bind(pads: list[int]) -> Kernel:
        return call.bind(
            "conv",
            call.params(),
            params,
            call.out,
            codes.contiguous(),
            _bias(call, 2),
            stride=_stride(call),
            pads=pads,
            dilation=dilation,
            groups=groups,
            bounds=call.bounds,
        )

    bind([0, 0, 0, 0])  # errors now
    return _image(_by_size(bind, _pads(call, codes.shape[2:], dilation)))


def _conv_transpose(call: Call) -> Kernel:
    """Bind TRANSPOSE_CONV; its result is cut or extended to the size of the output."""
    weight, height_width = call.stored(1), call.output.shape[1:3]
    codes = weight.permute(3, 0, 1, 2).contiguous()
    stride, same = _stride(call), call.is_same
    sizes = call.input(2).shape[1:3]
    begins, ends, extra = [], [], []
    for size, k, s, n in zip(sizes, codes.shape[2:], stride, height_width, strict=True):
        total = max((-(-n // s) - 1) * s + k - n, 0) if same else 0
        before, whole = total // 2, (size - 1) * s + k
        begins.append(before)
        ends.append(max(whole - before - n, 0))
        extra.append(max(n + before - whole, 0))
    kernel = call.bind(
        "conv_transpose",
        call.params(2),
        params_of(call.input(1), 1),
        call.out,
        codes,
        _bias(call, 3),
        stride=stride,
        pads=[*begins, *ends],
        output_padding=extra,
        bounds=call.bounds,
    )
    return _image(kernel)


def _linear(call: Call) -> Kernel:
    weight = call.stored(1)
    if weight.dim() != 2:
        raise KernelError(f"its weight has {weight.dim()} dimensions, not 2")
    kernel = call.bind(
        "linear",
        call.params(),
        params_of(call.input(1), 0),
        call.out,
        weight,
        _bias(call, 2),
        bounds=call.bounds,
    )
    return _on_rows(call, kernel)


def dynamic_linear(call: Call) -> Kernel:
    """Bind FULLY_CONNECTED on floats with int8 weights."""
    bias = None if call.tensor(2) is None else call.stored(2)
    kernel = call.bind("dynamic_linear", params_of(call.input(1), 0), call.stored(1), bias)
    return _on_rows(call, kernel)


def _on_rows(call: Call, kernel: Kernel) -> Kernel:
    """Return the kernel of a linear layer, on rows of the weight's width unless axes are kept."""
    keep, width = bool(call.option("keep_num_dims", False)), call.input(1).shape[1]
    return lambda x: kernel(x if keep else x.reshape(-1, width))


def _matmul(call: Call) -> Kernel:
    kernel = call.bind("matmul", call.params(0), call.params(1), call.out)
    swapped = [bool(call.option(name, False)) for name in ("adj_x", "adj_y")]

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        operands = [t.transpose(-1, -2) if s else t for t, s in zip((a, b), swapped, strict=True)]
        return kernel(*operands)

    return run


def _binary(key: str) -> Bind:
    def bind(call: Call) -> Kernel:
        options: dict[str, Any] = {"bounds": call.bounds}
        if key != "mul":
            options["pot_scale_int16"] = bool(call.option("pot_scale_int16", True))
        return call.bind(key, call.params(0), call.params(1), call.out, **options)

    return bind


def _unary(key: str, **options: Callable[[Call], Any]) -> Bind:
    def bind(call: Call) -> Kernel:
        values = {name: value(call) for name, value in options.items()}
        return call.bind(key, call.params(), call.out, **values)

    return bind


def _pool(key: str) -> Bind:
    def bind(call: Call) -> Kernel:
        kernel = [int(call.option("filter_height")), int(call.option("filter_width"))]
        if min(kernel) < 1:
            raise KernelError(f"{call.operator.name} has the window {kernel}")

        def pool(pads: list[int]) -> Kernel:
            options = {"kernel": kernel, "stride": _stride(call), "pads": pads}
            return call.bind(key, call.params(), call.out, **options, bounds=call.bounds)

        pool([0, 0, 0, 0])  # errors now
        return _image(_by_size(pool, _pads(call, kernel, (1, 1))))

    return bind


def _mean(call: Call) -> Kernel:
    rank = len(call.input().shape)
    axes = sorted({n % rank for n in call.numbers(1)})
    keep = bool(call.option("keep_dims", False))
    return call.bind("mean", call.params(), call.out, axes=axes, keep_dims=keep)


def _softmax(call: Call) -> Kernel:
    if float(call.option("beta", 0.0)) != 1.0:
        raise KernelError(f"SOFTMAX with beta {call.option('beta')} is not supported")
    return call.bind("softmax", call.params(), call.out, axis=-1)


def _prelu(call: Call) -> Kernel:
    slope = params_of(call.input(1))
    return call.bind("prelu", call.params(), slope, call.out, call.stored(1))


def _concat(call: Call) -> Kernel:
    params = [call.params(i) for i in range(len(call.operator.inputs))]
    axis = int(call.option("axis"))
    return call.bind("concat", params, call.out, axis=axis, requantize=False)


def _extreme(choose: Callable[..., torch.Tensor]) -> Bind:
    """Bind MINIMUM or MAXIMUM, which compare codes of equal parameters."""

    def bind(call: Call) -> Kernel:
        for position in (0, 1):
            _require_same(call, call.params(position))
        return choose

    return bind


def _extreme_along(choose: Callable[..., torch.Tensor]) -> Bind:
    """Bind REDUCE_MAX or REDUCE_MIN, whose result is codes of the input."""

    def bind(call: Call) -> Kernel:
        _require_same(call, call.params())
        axes, keep = call.numbers(1), bool(call.option("keep_dims", False))
        return lambda codes: choose(codes, axes, keep)

    return bind


def _require_same(call: Call, params: QuantParams) -> None:
    out = call.out
    same = params.scale.equal(out.scale) and params.zero_point.equal(out.zero_point)
    if not same:
        raise KernelError(
            f"{call.operator.name} compares codes, and its inputs and output have other parameters"
        )


_RELUS = {
    "RELU": (0.0, None),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU_0_TO_1": (0.0, 1.0),
}

OPERATORS: Mapping[str, Bind] = {
    "ADD": _binary("add"),
    "AVERAGE_POOL_2D": _pool("average_pool"),
    "BATCH_MATMUL": _matmul,
    "CONCATENATION": _concat,
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _conv,
    "FULLY_CONNECTED": _linear,
    "GELU": _unary(
        "gelu", approximate=lambda call: "tanh" if call.option("approximate", False) else "none"
    ),
    "HARD_SWISH": _unary("hard_swish"),
    "LEAKY_RELU": _unary("leaky_relu", alpha=lambda call: float(call.option("alpha", 0.0))),
    "LOGISTIC": _unary("sigmoid"),
    "MAXIMUM": _extreme(torch.maximum),
    "MAX_POOL_2D": _pool("max_pool"),
    "MEAN": _mean,
    "MINIMUM": _extreme(torch.minimum),
    "MUL": _binary("mul"),
    "PRELU": _prelu,
    "QUANTIZE": _unary("requantize"),
    "REDUCE_MAX": _extreme_along(torch.amax),
    "REDUCE_MIN": _extreme_along(torch.amin),
    "SOFTMAX": _softmax,
    "SUB": _binary("sub"),
    "TANH": _unary("tanh"),
    "TRANSPOSE_CONV": _conv_transpose,
    **{name: _unary("relu", bounds=lambda call: _RELUS[call.operator.name]) for name in _RELUS},
}
"""Operator of the schema -> how its kernel on codes is bound."""

DATA_INPUTS: Mapping[str, tuple[int, ...]] = {
    "ADD": (0, 1),
    "BATCH_MATMUL": (0, 1),
    "MAXIMUM": (0, 1),
    "MINIMUM": (0, 1),
    "MUL": (0, 1),
    "SUB": (0, 1),
    "TRANSPOSE_CONV": (2,),
}
"""Positions of the inputs that a kernel takes; of others the first, of CONCATENATION all."""
