"""Functions of each element in float, as the operators that TFLite has."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import fx

from qtool.backends.tflite.export.layers import name
from qtool.backends.tflite.export.values import Stored, Value
from qtool.backends.tflite.export.writer import Writer
from qtool.core import graph as G


def clamp(w: Writer, node: fx.Node) -> Value:
    low, high = G.argument(node, 1, "min"), G.argument(node, 2, "max")
    x: Value = w.whole(node.args[0])
    for kind, bound in (("MAXIMUM", low), ("MINIMUM", high)):
        if bound is None:
            continue
        number = (
            w.floats(bound)
            if isinstance(bound, fx.Node) and G.is_tensor(bound)
            else w.stored(Stored("bound", torch.tensor(float(w.number(bound)))), ())
        )
        x = w.emit(kind, [x, number], w.new(name(node), node, x.order))
    return x


def hard_sigmoid(w: Writer, node: fx.Node) -> Value:
    """relu6(x + 3) / 6"""
    x = w.whole(node.args[0])
    three, sixth = (w.stored(Stored("number", torch.tensor(v)), ()) for v in (3.0, 1 / 6))
    moved = w.new(f"{name(node)}.moved", node, x.order)
    w.emit("ADD", [x, three], moved, fused_activation_function=3)
    return w.emit("MUL", [moved, sixth], w.new(name(node), node, x.order))


def silu(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    gate = w.emit("LOGISTIC", [x], w.new(f"{name(node)}.gate", node, x.order))
    return w.emit("MUL", [x, gate], w.new(name(node), node, x.order))


def prelu(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    slope = w.argument(node.args[1])
    assert isinstance(slope, Stored)
    shape = [1] * len(x.sizes)
    shape[1 if len(x.sizes) > 1 else 0] = slope.data.numel()
    data = slope.real().detach().reshape(shape).permute(*x.order)[0]
    index = w.builder.constant(slope.name, np.ascontiguousarray(data.numpy()))
    return w.emit("PRELU", [x, index], w.new(name(node), node, x.order))


def elu(w: Writer, node: fx.Node) -> Value:
    """max(x, 0) + alpha * (exp(min(x, 0)) - 1), since reference kernels have no ELU."""
    x = w.whole(node.args[0])
    alpha, scale, inner = (
        float(G.argument(node, i, n, 1.0))
        for i, n in ((1, "alpha"), (2, "scale"), (3, "input_scale"))
    )

    def part(kind: str, a: Value, b: Value | None, title: str) -> Value:
        operands = [a] if b is None else [a, b]
        return w.emit(kind, operands, w.new(f"{name(node)}.{title}", node, x.order))

    zero = _number(w, 0.0)
    positive = part("MAXIMUM", x, zero, "positive")
    negative = part("MINIMUM", x, zero, "negative")
    if inner != 1.0:
        negative = part("MUL", negative, _number(w, inner), "inner")
    raised = part("SUB", part("EXP", negative, None, "exp"), _number(w, 1.0), "expm1")
    if alpha != 1.0:
        raised = part("MUL", raised, _number(w, alpha), "alpha")
    result = w.emit("ADD", [positive, raised], w.new(name(node), node, x.order))
    return result if scale == 1.0 else part("MUL", result, _number(w, scale), "scale")


def ceil(w: Writer, node: fx.Node) -> Value:
    """-floor(-x), since reference kernels have no CEIL."""
    x = w.whole(node.args[0])
    for i, kind in enumerate(("NEG", "FLOOR", "NEG")):
        x = w.emit(kind, [x], w.new(f"{name(node)}.{i}", node, x.order))
    return x


def round_to_even(w: Writer, node: fx.Node) -> Value:
    """m + max(-floor(1/2 - y), 0) + min(floor(y + 1/2), 0), m = 2 floor(x/2 + 1/2), y = x - m.

    m is the even number next to x, where halves stay. Reference kernels have no ROUND.
    """
    x, count = w.whole(node.args[0]), itertools.count()
    half, two, zero = (_number(w, v) for v in (0.5, 2.0, 0.0))

    def part(kind: str, *inputs: Value) -> Value:
        return w.emit(kind, list(inputs), w.new(f"{name(node)}.{next(count)}", node, x.order))

    even = part("MUL", part("FLOOR", part("ADD", part("MUL", x, half), half)), two)
    rest = part("SUB", x, even)
    up = part("MAXIMUM", part("NEG", part("FLOOR", part("SUB", half, rest))), zero)
    down = part("MINIMUM", part("FLOOR", part("ADD", rest, half)), zero)
    return w.emit("ADD", [part("ADD", even, up), down], w.new(name(node), node, x.order))


def expm1(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    raised = w.emit("EXP", [x], w.new(f"{name(node)}.exp", node, x.order))
    return w.emit("SUB", [raised, _number(w, 1.0)], w.new(name(node), node, x.order))


def log1p(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    moved = w.emit("ADD", [x, _number(w, 1.0)], w.new(f"{name(node)}.moved", node, x.order))
    return w.emit("LOG", [moved], w.new(name(node), node, x.order))


def reciprocal(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    return w.emit("DIV", [_number(w, 1.0), x], w.new(name(node), node, x.order))


def square(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    return w.emit("MUL", [x, x], w.new(name(node), node, x.order))


def _number(w: Writer, value: float) -> Value:
    return w.stored(Stored("number", torch.tensor(value)), ())
