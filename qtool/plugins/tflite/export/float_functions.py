"""Functions of each element and lookups in float, as the operators that TFLite has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import fx

from qtool.core import graph as G
from qtool.core.errors import ExportError
from qtool.core.graph import torch_ops
from qtool.plugins.tflite.export.layers import name
from qtool.plugins.tflite.export.moves import pad_widths
from qtool.plugins.tflite.export.values import Stored, Value, identity
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
        return [self.writer.scalar("number", value) for value in values]


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
            else writer.scalar("bound", writer.number(bound), dtype)
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


def embedding(writer: Writer, node: fx.Node) -> Value:
    """Write GATHER of rows; those of codes are cast and multiplied by their scales."""
    at = [0, 1] if node.target in (torch_ops.embedding, torch_ops.embedding_codes) else [1, 0]
    ids, table = (writer.argument(node.args[i]) for i in at)
    assert isinstance(ids, Value)
    assert isinstance(table, Stored)
    ids = writer.in_order(ids, identity(len(ids.sizes)))
    if node.target is not torch_ops.embedding_codes:
        rows = writer.constant(Stored(table.name, table.real().detach()), identity(2))
        return writer.emit("GATHER", [rows, ids], writer.tensor_like(name(node), node), 2, axis=0)
    scale = writer.argument(node.args[2])
    assert isinstance(scale, Stored)
    whole = writer.tensor_like(name(node), node)
    column = Stored(scale.name, scale.data.detach()[:, None])
    codes = writer.tensor(
        f"{name(node)}.rows", whole.sizes, whole.dynamic, whole.order, dtype="int8"
    )
    factor = writer.tensor(
        f"{name(node)}.scale", (*whole.sizes[:-1], 1), whole.dynamic, whole.order
    )
    real = writer.tensor(f"{name(node)}.cast", whole.sizes, whole.dynamic, whole.order)
    stored = writer.constant(Stored(table.name, table.data.detach()), identity(2))
    writer.emit("GATHER", [stored, ids], codes, 2, axis=0)
    writer.emit("GATHER", [writer.constant(column, identity(2)), ids], factor, 2, axis=0)
    writer.emit("CAST", [codes], real, in_data_type=9, out_data_type=0)
    return writer.emit("MUL", [real, factor], whole)


def index(writer: Writer, node: fx.Node) -> Value:
    """Write x[samples, columns] of a tensor [N, C] as GATHER; masks of attention have this form.

    The samples have to be all of the batch, in order, and the columns constant.
    """
    indices: Any = node.args[1]
    source = G.source(node)
    x = writer.in_order(writer.as_tensor(source), identity(G.rank(source)))
    chosen = [None if i is None else writer.argument(i) for i in indices]
    fits = len(chosen) == len(x.sizes) == 2
    rows, columns = chosen if fits else (None, None)
    if (
        not isinstance(rows, Stored)
        or not isinstance(columns, Stored)
        or not rows.follows_batch
        or rows.data.dim() != G.rank(node)
        or G.shape(node)[0] != G.shape(source)[0]
    ):
        raise ExportError(
            f"{name(node)}: elements that are selected by tensors cannot be written to TFLite; "
            "select them along one axis"
        )
    places = columns.data.flatten().tolist()
    sizes = (x.sizes[0], len(places))
    flat = writer.tensor(f"{name(node)}.columns", sizes, x.dynamic, x.order, dtype=x.dtype)
    writer.emit("GATHER", [x, writer.integers(places)], flat, 2, axis=1)
    result = writer.tensor_like(name(node), node)
    writer.reshape(flat, result)
    return result


def arg_max(kind: str) -> Callable[[Writer, fx.Node], Value]:
    def write(writer: Writer, node: fx.Node) -> Value:
        x = writer.floats(node.args[0])
        axis, keep = G.argument(node, 1, "dim"), bool(G.argument(node, 2, "keepdim", False))
        if axis is None:
            raise ExportError(f"{name(node)}: {kind} over all axes cannot be written to TFLite")
        x = writer.in_order(x, identity(len(x.sizes)))
        index = writer.integers([int(axis) % len(x.sizes)])
        result = writer.tensor_like(name(node), node)
        if not keep:
            return writer.emit(kind, [x, index], result, output_type=4)
        sizes = [s for i, s in enumerate(x.sizes) if i != axis % len(x.sizes)]
        moves = [s for i, s in enumerate(x.dynamic) if i != axis % len(x.sizes)]
        flat = writer.tensor(
            f"{name(node)}.flat", sizes, moves, identity(len(sizes)), dtype="int64"
        )
        writer.emit(kind, [x, index], flat, output_type=4)
        writer.reshape(flat, result)
        return result

    return write


def border_pad(writer: Writer, node: fx.Node) -> Value:
    """Write padding by reflection as MIRROR_PAD; by other elements as a GATHER for each axis."""
    mode = G.argument(node, 2, "mode", "constant")
    x = writer.in_graph_order(node.args[0])
    around = pad_widths(writer, node, len(x.sizes))
    if mode == "reflect" and min(min(pair) for pair in around) >= 0:
        table = writer.pads(x, around)
        return writer.emit(
            "MIRROR_PAD", [x, table], writer.tensor_like(name(node), node, x.order), mode=0
        )
    for axis, (before, after) in enumerate(around):
        if before or after:
            x = _gathered(writer, node, x, axis, _places(x.sizes[axis], before, after, str(mode)))
    return x


def _places(size: int, before: int, after: int, mode: str) -> list[int]:
    """Return the place of each element of a padded axis in the axis itself."""
    places = np.arange(-before, size + after)
    if mode == "circular":
        return [int(p) for p in places % size]
    if mode == "reflect":
        turn = np.abs(places) % max(2 * (size - 1), 1)
        return [int(p) for p in np.minimum(turn, 2 * (size - 1) - turn)]
    return [int(p) for p in places.clip(0, size - 1)]


def _gathered(writer: Writer, node: fx.Node, x: Value, axis: int, places: list[int]) -> Value:
    if x.dynamic[axis]:
        raise ExportError(f"{name(node)}: padding a dynamic batch cannot be written to TFLite")
    sizes = [len(places) if i == axis else s for i, s in enumerate(x.sizes)]
    result = writer.tensor(f"{name(node)}.{axis}", sizes, x.dynamic, x.order)
    return writer.emit("GATHER", [x, writer.integers(places)], result, 2, axis=x.axis(axis))
