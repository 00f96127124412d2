"""Functions of each element in float, as the operators that TFLite has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from qtool.core import graph as G
from qtool.plugins.tflite.export.layers import name
from qtool.plugins.tflite.export.values import Stored, Value
from qtool.plugins.tflite.export.writer import Writer


class _Steps:
    """The operators that a call is written as.

    Attributes:
        x: the operand of the call, in float.
    """

    def __init__(self, writer: Writer, node: fx.Node) -> None:
        self.writer, self.node, self.x = writer, node, writer.in_graph_order(node.args[0])

    def __call__(self, kind: str, *operands: Value, part: str = "", **options: Any) -> Value:
        """Write an operator; `part` ends the name of a result that is not that of the call."""
        title = f"{name(self.node)}.{part}" if part else name(self.node)
        return self.writer.emit(
            kind, operands, self.writer.tensor_like(title, self.node, self.x.order), **options
        )

    def numbers(self, *values: float) -> Sequence[Value]:
        return [
            self.writer.constant(Stored("number", torch.tensor(v, dtype=torch.float32)), ())
            for v in values
        ]


def clamp(writer: Writer, node: fx.Node) -> Value:
    step = _Steps(writer, node)
    x, dtype = step.x, G.value(node).dtype  # counts stay integers
    for kind, bound in (
        ("MAXIMUM", G.argument(node, 1, "min")),
        ("MINIMUM", G.argument(node, 2, "max")),
    ):
        if bound is None:
            continue
        number = (
            writer.floats(bound)
            if isinstance(bound, fx.Node) and G.is_tensor(bound)
            else writer.constant(
                Stored("bound", torch.tensor(writer.number(bound), dtype=dtype)), ()
            )
        )
        x = step(kind, x, number)
    return x


def hard_sigmoid(writer: Writer, node: fx.Node) -> Value:
    """relu6(x + 3) / 6"""
    step = _Steps(writer, node)
    three, sixth = step.numbers(3.0, 1 / 6)
    return step("MUL", step("ADD", step.x, three, part="moved", fused_activation_function=3), sixth)


def prelu(writer: Writer, node: fx.Node) -> Value:
    step = _Steps(writer, node)
    slope = writer.argument(node.args[1])
    assert isinstance(slope, Stored)
    shape = [1] * len(step.x.sizes)
    shape[1 if len(step.x.sizes) > 1 else 0] = slope.data.numel()
    data = slope.real().detach().reshape(shape).permute(*step.x.order)[0]
    index = writer.builder.constant(slope.name, np.ascontiguousarray(data.numpy()))
    return writer.emit("PRELU", [step.x, index], writer.tensor_like(name(node), node, step.x.order))


def elu(writer: Writer, node: fx.Node) -> Value:
    """max(x, 0) + alpha * (exp(min(x, 0)) - 1), since reference kernels have no ELU."""
    step = _Steps(writer, node)
    alpha, scale, inner = (
        float(G.argument(node, i, n, 1.0))
        for i, n in ((1, "alpha"), (2, "scale"), (3, "input_scale"))
    )
    (zero,) = step.numbers(0.0)
    positive = step("MAXIMUM", step.x, zero, part="positive")
    negative = step("MINIMUM", step.x, zero, part="negative")
    if inner != 1.0:
        negative = step("MUL", negative, *step.numbers(inner), part="inner")
    raised = step("EXP", negative, part="exp")
    raised = step("SUB", raised, *step.numbers(1.0), part="expm1")
    if alpha != 1.0:
        raised = step("MUL", raised, *step.numbers(alpha), part="alpha")
    result = step("ADD", positive, raised)
    return result if scale == 1.0 else step("MUL", result, *step.numbers(scale), part="scale")


def ceil(writer: Writer, node: fx.Node) -> Value:
    """-floor(-x), since reference kernels have no CEIL."""
    step = _Steps(writer, node)
    x = step.x
    for i, kind in enumerate(("NEG", "FLOOR", "NEG")):
        x = step(kind, x, part=str(i))
    return x


def round_to_even(writer: Writer, node: fx.Node) -> Value:
    """m + max(-floor(1/2 - y), 0) + min(floor(y + 1/2), 0), m = 2 floor(x/2 + 1/2), y = x - m.

    m is the even number next to x, where halves stay. Reference kernels have no ROUND.
    """
    step, count = _Steps(writer, node), itertools.count()
    half, two, zero = step.numbers(0.5, 2.0, 0.0)

    def part(kind: str, *inputs: Value) -> Value:
        return step(kind, *inputs, part=str(next(count)))

    even = part("MUL", part("FLOOR", part("ADD", part("MUL", step.x, half), half)), two)
    rest = part("SUB", step.x, even)
    up = part("MAXIMUM", part("NEG", part("FLOOR", part("SUB", half, rest))), zero)
    down = part("MINIMUM", part("FLOOR", part("ADD", rest, half)), zero)
    return step("ADD", part("ADD", even, up), down)


def expm1(writer: Writer, node: fx.Node) -> Value:
    step = _Steps(writer, node)
    return step("SUB", step("EXP", step.x, part="exp"), *step.numbers(1.0))


def log1p(writer: Writer, node: fx.Node) -> Value:
    step = _Steps(writer, node)
    return step("LOG", step("ADD", step.x, *step.numbers(1.0), part="moved"))


def reciprocal(writer: Writer, node: fx.Node) -> Value:
    step = _Steps(writer, node)
    return step("DIV", *step.numbers(1.0), step.x)


def square(writer: Writer, node: fx.Node) -> Value:
    step = _Steps(writer, node)
    return step("MUL", step.x, step.x)
