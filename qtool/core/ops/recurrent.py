"""Recurrent layers: one operator each, with the weight layout of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qtool.core.graph.torch_ops import operator, range_of_batch
from qtool.core.quant_params import affine_codes
from qtool.core.types import UINT8

aten = torch.ops.aten

GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""Recurrent layer -> positions in torch of the gates in ONNX's order."""


def _recurrent(
    kind: str,
    kernel: Callable[..., Any],
    x: Tensor,
    weights: Sequence[Tensor],
    state: Sequence[Tensor | None],
) -> Any:
    w, r, b = weights
    count, hidden = len(w), r.shape[2]
    if any(isinstance(size, torch.SymInt) for size in x.shape):  # torch would run each step
        y = x.new_empty([x.shape[0], count, x.shape[1], hidden])
        return (y, *(x.new_empty([count, x.shape[1], hidden]) for _ in state))
    order = [GATES[kind].index(gate) for gate in range(len(GATES[kind]))]

    def as_torch(t: Tensor) -> Tensor:
        gates: Tensor = t.unflatten(0, (-1, hidden))[order]
        return gates.flatten(0, 1)

    parts = []
    for d in range(count):
        both = b[d].chunk(2)
        parts += [as_torch(t) for t in (w[d], r[d], *both)]
    states = [x.new_zeros(count, x.shape[1], hidden) if s is None else s for s in state]
    first = states if kind == "lstm" else states[0]
    y, *last = kernel(x, first, parts, True, 1, 0.0, False, count == 2, False)
    return (y.unflatten(-1, (count, hidden)).transpose(1, 2), *last)


@operator()
def lstm(
    x: Tensor, weight: Tensor, recurrent: Tensor, b: Tensor, h: Tensor | None, c: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """LSTM, one layer: x [time, batch, in], weight [directions, 4 x hidden, in], recurrent
    [directions, 4 x hidden, hidden], b [directions, 8 x hidden], gates as in ONNX; h and c
    [directions, batch, hidden], zeros if None. Returns all states [time, directions, batch,
    hidden], the last h and c."""
    y, h, c = _recurrent("lstm", aten.lstm.input, x, (weight, recurrent, b), (h, c))
    return y, h, c


@operator()
def gru(
    x: Tensor, weight: Tensor, recurrent: Tensor, b: Tensor, h: Tensor | None
) -> tuple[Tensor, Tensor]:
    """GRU with linear_before_reset, one layer; three gates, otherwise as `lstm`."""
    y, last = _recurrent("gru", aten.gru.input, x, (weight, recurrent, b), (h,))
    return y, last


@operator()
def rnn(
    x: Tensor, weight: Tensor, recurrent: Tensor, b: Tensor, h: Tensor | None, function: str
) -> tuple[Tensor, Tensor]:
    """RNN, one layer, `function` "tanh" or "relu"; one gate, otherwise as `lstm`."""
    kernels = {"tanh": aten.rnn_tanh.input, "relu": aten.rnn_relu.input}
    y, last = _recurrent("rnn", kernels[function], x, (weight, recurrent, b), (h,))
    return y, last


def _round(x: Tensor) -> Tensor:
    """Round to uint8 in the range of all of x; the gradient is that of the identity."""
    values = x.detach()
    scale, zero = range_of_batch(values, UINT8.qmin, UINT8.qmax)
    rounded = (affine_codes(values, scale, zero, UINT8) - zero) * scale
    return x + (rounded - values) if x.requires_grad else rounded


def rounded_lstm(
    x: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    b: Tensor,
    h: Tensor | None = None,
    c: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`lstm` whose input is rounded to uint8 in one range, and in each step the state of all
    samples, as by DynamicQuantizeLSTM of ONNX Runtime on one thread (uni_directional_lstm.cc)."""
    zeros = x.new_zeros(len(weight), x.shape[1], recurrent.shape[2])
    states, cells = (zeros if t is None else t for t in (h, c))
    x = _round(x)
    results = [
        _rounded_direction(x, weight[d], recurrent[d], b[d], states[d], cells[d], backwards=d == 1)
        for d in range(len(weight))
    ]
    y, h, c = (torch.stack(each) for each in zip(*results, strict=True))
    return y.transpose(0, 1), h, c


def _rounded_direction(
    x: Tensor, weight: Tensor, recurrent: Tensor, b: Tensor, h: Tensor, c: Tensor, backwards: bool
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = F.linear(x, weight, torch.add(*b.chunk(2)))
    states = []
    for step in inputs.flip(0) if backwards else inputs:
        i, o, f, g = (step + F.linear(_round(h), recurrent)).chunk(4, -1)
        c = c * f.sigmoid() + i.sigmoid() * g.tanh()
        h = c.tanh() * o.sigmoid()
        states.append(h)
    y = torch.stack(states)
    return (y.flip(0) if backwards else y), h, c


def _results(x: Tensor, w: Tensor, *_: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    directions, (time, batch), hidden = w.shape[0], x.shape[:2], w.shape[2] // 4
    last = (directions, batch, hidden)
    return x.new_empty(time, directions, batch, hidden), x.new_empty(last), x.new_empty(last)


@operator(fake=_results)
def dynamic_lstm(
    x: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    r: Tensor,
    r_scale: Tensor,
    r_zero: Tensor,
    b: Tensor,
    h: Tensor | None,
    c: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`rounded_lstm` on int8 codes [directions, in, 4 x hidden], with scales and zero points
    [directions, 4 x hidden]."""
    weight, recurrent = (
        ((codes.int() - zero.int()[:, None]).float() * scale[:, None]).transpose(1, 2)
        for codes, scale, zero in ((w, w_scale, w_zero), (r, r_scale, r_zero))
    )
    return rounded_lstm(x, weight, recurrent, b, h, c)
