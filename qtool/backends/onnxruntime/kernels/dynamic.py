"""Products of inputs that are quantized at run time, as ONNX Runtime computes them.

The runtime fuses DynamicQuantizeLinear, MatMulInteger and the multiplication behind it to one
kernel. Its arithmetic is that of the parts: integers, then one float32 product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qtool.backends.kernels.accumulate import Accumulate, linear_accumulator
from qtool.backends.kernels.params import Kernel
from qtool.backends.onnxruntime.kernels.functions import logistic, tanh
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.types import UINT8


def dynamic_quantize() -> Callable[..., Any]:
    """Bind DynamicQuantizeLinear: float32 -> uint8 codes, their scale and their zero point."""
    levels, zero = (
        torch.tensor(float(UINT8.levels), dtype=torch.float32),
        torch.zeros((), dtype=torch.float32),
    )

    def run(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        least, most = torch.aminmax(x) if x.numel() else (zero, zero)
        low, high = torch.minimum(least, zero), torch.maximum(most, zero)
        scale = torch.where(low == high, 1.0, (high - low) / levels)
        point = (-(low / scale)).clamp(0, UINT8.qmax).round()
        codes = ((x / scale).round() + point).clamp(0, UINT8.qmax)
        return codes.to(torch.uint8), scale, point.to(torch.uint8)

    return run


def matmul_integer(
    w: QuantParams, weight: Tensor, sums_of: Callable[..., Accumulate] = linear_accumulator
) -> Kernel:
    """Bind MatMulInteger: uint8 codes [..., in] and their zero point -> int32 [..., out].

    Args:
        w: parameters of the weight.
        weight: codes [out, in].
        sums_of: binds the sums of products, see `accumulate.linear_accumulator`.
    """
    one, zero = torch.ones((), dtype=torch.float32), torch.zeros((), dtype=torch.int64)
    sums = sums_of(QuantParams(UINT8, one, zero), w, weight, None)
    shifted = weight.to(torch.int64) - w.along(w.zero_point, weight.shape)
    columns = shifted.sum(1)

    def run(codes: Tensor, zero_point: Tensor | None = None) -> Tensor:
        total = sums(codes).to(torch.int64)
        if zero_point is not None:
            total = total - zero_point.to(torch.int64) * columns
        return total.to(torch.int32)

    return run


def dynamic_matmul(
    w: QuantParams,
    weight: Tensor,
    bias: Tensor | None = None,
    sums_of: Callable[..., Accumulate] = linear_accumulator,
) -> Kernel:
    """Bind a product of floats [..., in], rounded to uint8 by one range, and a weight.

    Args:
        w: parameters of the weight.
        weight: codes [out, in].
        bias: float32 [out].
        sums_of: as for `matmul_integer`.
    """
    quantize, product = dynamic_quantize(), matmul_integer(w, weight, sums_of)

    def run(x: Tensor) -> Tensor:
        codes, scale, zero_point = quantize(x)
        result: Tensor = product(codes, zero_point).to(torch.float32) * (scale * w.scale)
        return result if bias is None else result + bias

    return run


# DynamicQuantizeLSTM as ONNX Runtime computes it on one thread.
#
# The whole input is rounded to uint8 by one range; in each step so is the state of all samples.
# Products are integer; gates and state are float32, with the logistic function and tanh of MLAS.
# Sources: onnxruntime/core/providers/cpu/rnn/rnn_helpers.cc, uni_directional_lstm.cc.


@dataclass(frozen=True, eq=False)
class LstmDirection:
    """Weights of one direction, gates in the order of ONNX: input, output, forget, cell.

    Attributes:
        weight: codes [4 x hidden, in].
        w: parameters of `weight`.
        recurrent: codes [4 x hidden, hidden].
        r: parameters of `recurrent`.
        bias: float32 [8 x hidden], or None.
        backwards: it starts with the last step.
    """

    weight: Tensor
    w: QuantParams
    recurrent: Tensor
    r: QuantParams
    bias: Tensor | None
    backwards: bool = False

    @property
    def hidden(self) -> int:
        return self.recurrent.shape[1]

    def products(self) -> tuple[Kernel, Kernel]:
        """Return the products with the inputs and with the state."""
        return dynamic_matmul(self.w, self.weight), dynamic_matmul(self.r, self.recurrent)


def dynamic_lstm(directions: Sequence[LstmDirection]) -> Callable[..., Any]:
    """Bind an LSTM of one or two directions.

    The kernel maps x [time, batch, in], h and c [directions, batch, hidden] (None for zeros) to all
    states [time, directions, batch, hidden], and the last h and c.
    """
    if len({each.hidden for each in directions}) != 1:
        raise KernelError("both directions of an LSTM have the same size")
    layers = [_layer(each) for each in directions]

    def run(
        x: Tensor, h: Tensor | None = None, c: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        zeros = x.new_zeros(len(layers), x.shape[1], directions[0].hidden)
        initial = zip(layers, zeros if h is None else h, zeros if c is None else c, strict=True)
        results = [layer(x, *states) for layer, *states in initial]
        states, last, cells = zip(*results, strict=True)
        return torch.stack(states, 1), torch.stack(last), torch.stack(cells)

    return run


def _layer(direction: LstmDirection) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    from_input, from_state = direction.products()
    bias = None if direction.bias is None else torch.add(*direction.bias.chunk(2))

    def run(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        order = reversed(range(len(x))) if direction.backwards else range(len(x))
        input_gates = from_input(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        states = x.new_zeros(*x.shape[:2], direction.hidden)
        for step in order:
            gates = input_gates[step] + from_state(h)
            gates = gates if bias is None else gates + bias
            i, o, f, g = gates.chunk(4, 1)
            c = c * logistic(f) + logistic(i) * tanh(g)
            h = states[step] = tanh(c) * logistic(o)
        return states, h, c

    return run
