"""Output sizes as expressions of dynamic input sizes, fitted to sample points.

A function that infers the output sizes for integer input sizes (a runtime) is called at several
points. The expression that fits all of them is used: a constant, a size, a size times or plus a
number, a sum or a product of two sizes, an affine function of one, or a multiple of it. What is
equal at near points may rise further away, by a frame for each hop of samples, or by all samples of
a frame: the hop gives more points. Sizes that come to 0 are no points: runtimes fail on them.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from math import gcd

import sympy  # type: ignore[import-untyped]  # it ships no type information
import torch
from torch.utils._sympy.functions import FloorDiv

from qtool.core.errors import CaptureError

Size = int | torch.SymInt
Shapes = Sequence[Sequence[Size]]
Sizes = tuple[int | None, ...]
Hints = dict[sympy.Symbol, int]  # sizes in the example
Values = Mapping[sympy.Symbol, sympy.Integer]
Point = tuple[Values, list[Sizes]]  # sizes of the inputs and of the outputs
Tried = tuple[Values, list[Sizes] | None]
InferSizes = Callable[[Sequence[tuple[int, ...]]], list[Sizes]]
"""Sizes of the inputs -> sizes of the outputs, None for one that depends on values."""

_POINTS = 9  # the sizes of the example and eight larger ones
_MIN_POINTS = 4  # that an expression has to fit


def symbolic_sizes(infer: InferSizes, shapes: Shapes) -> list[tuple[Size | None, ...]]:
    """Return the sizes of each output: numbers, symbolic sizes, or None if no expression fits.

    Args:
        infer: raises CaptureError for input sizes that contradict each other.
        shapes: sizes of the inputs: numbers or SymInts.
    """
    symbolic = [s for shape in shapes for s in shape if isinstance(s, torch.SymInt)]
    symbolic = [s for s in symbolic if s.node.maybe_as_int() is None]
    if not symbolic:
        return [tuple(sizes) for sizes in infer([tuple(map(int, shape)) for shape in shapes])]
    points = list(_sample_points(infer, shapes, symbolic))
    if not points:  # sizes are valid only at those of the capture: raises the reason
        _infer_at(infer, shapes, _hints(symbolic))
    terms = list({str(s): s.node.expr for s in symbolic}.values())
    points += _far_points(infer, shapes, _hints(symbolic), [sizes for _, sizes in points])
    first = points[0][1]
    return [
        tuple(_fitted_size(points, terms, k, axis, symbolic[0]) for axis in range(len(sizes)))
        for k, sizes in enumerate(first)
    ]


def _sample_points(
    infer: InferSizes, shapes: Shapes, symbolic: list[torch.SymInt]
) -> Iterator[Point]:
    hints = _hints(symbolic)
    symbols = sorted(hints, key=str)
    rng = random.Random(0)  # noqa: S311  # so that no symbol follows another by a formula
    steps = [[0, *rng.sample(range(1, _POINTS), _POINTS - 1)] for _ in symbols]  # all remainders
    for point in range(_POINTS):
        values = {
            s: sympy.Integer(hints[s] + own[point]) for s, own in zip(symbols, steps, strict=True)
        }
        if (sizes := _sizes_at(infer, shapes, values)) is not None:
            yield values, sizes


def _sizes_at(infer: InferSizes, shapes: Shapes, values: Values) -> list[Sizes] | None:
    try:
        return _infer_at(infer, shapes, values)
    except CaptureError:
        return None


def _infer_at(infer: InferSizes, shapes: Shapes, values: Values | Hints) -> list[Sizes]:
    dynamic = (s for shape in shapes for s in shape if isinstance(s, torch.SymInt))
    if not all(_at(s, values) for s in dynamic):
        raise CaptureError("an input is empty at the sizes of the example")
    return infer([tuple(_at(s, values) for s in shape) for shape in shapes])


def _far_points(
    infer: InferSizes, shapes: Shapes, hints: Hints, near: Sequence[list[Sizes]]
) -> Iterator[Point]:
    """Yield points at hops of sizes that hardly rise at near points, of each symbol alone."""
    places = [(k, axis) for k, sizes in enumerate(near[0]) for axis in range(len(sizes))]
    slow = [(k, axis) for k, axis in places if len({sizes[k][axis] for sizes in near}) < 3]
    for symbol, hint in hints.items():

        def point(step: int, symbol: sympy.Symbol = symbol, hint: int = hint) -> Tried:
            values = {s: sympy.Integer(n) for s, n in hints.items()}
            values[symbol] = sympy.Integer(hint + step)
            return values, _sizes_at(infer, shapes, values)

        def rises(step: int, since: int, point: Callable[[int], Tried] = point) -> bool:
            before, after = point(since)[1], point(step)[1]
            if before is None or after is None:
                return False
            return any(before[k][axis] != after[k][axis] for k, axis in slow)

        if not rises(hint, 0):
            continue
        first = bisect_left(range(hint), True, key=lambda step: rises(step, 0))
        second = bisect_left(range(2 * hint), True, first, key=lambda step: rises(step, first))
        hop = second - first
        steps = (first - 1, first, second - 1, second, hop, 2 * hop, hint)
        yield from ((at, sizes) for at, sizes in map(point, steps) if sizes is not None)


def _hints(symbolic: list[torch.SymInt]) -> Hints:
    """Return the size of each symbol in the example; 4 for one known only when the model runs."""
    hints: Hints = {}
    for size in symbolic:
        known = size.node.shape_env.backed_var_to_val
        for symbol in size.node.expr.free_symbols:
            hints[symbol] = int(known.get(symbol, 4))
    return hints


def _at(size: Size, values: Values) -> int:
    return int(size.node.expr.xreplace(values)) if isinstance(size, torch.SymInt) else int(size)


def _fitted_size(
    samples: Sequence[Point], terms: list[sympy.Expr], k: int, axis: int, like: torch.SymInt
) -> Size | None:
    known = [(values, sizes[k][axis]) for values, sizes in samples]
    points = [(values, size) for values, size in known if size is not None]
    if len(points) < len(known):
        return None
    if len({size for _, size in points}) == 1:
        return points[0][1]
    if len(points) < _MIN_POINTS:
        return None
    for expression in _candidates(terms, points):
        if all(expression.xreplace(values) == size for values, size in points):
            hint = points[0][1]
            symbol: torch.SymInt = like.node.shape_env.create_symintnode(expression, hint=hint)
            return symbol
    return None


def _candidates(terms: list[sympy.Expr], points: list[tuple[Values, int]]) -> Iterator[sympy.Expr]:
    """Yield expressions, the simplest first, with the constant that fits the first point."""
    pairs = list(combinations_with_replacement(terms, 2))
    every = [*terms, *(a * b for a, b in pairs), *(a + b for a, b in pairs)]
    yield from every
    for term in every:
        along_term, first = [int(term.xreplace(values)) for values, _ in points], points[0][1]
        low, rises = along_term[0], [size - first for _, size in points]
        others = [(a - low, up) for a, up in zip(along_term, rises, strict=True)]
        for step in dict.fromkeys((1, gcd(*rises))):  # of all frames, or of their samples
            slopes = (sympy.Rational(up // step, along) for along, up in others if along)
            for p, q in dict.fromkeys((int(s.p), int(s.q)) for s in slopes):
                for offset in range(q):
                    frames = [(p * a + offset) // q for a in along_term]
                    grown = [step * (f - frames[0]) for f in frames]
                    if grown == rises:
                        yield step * (FloorDiv(p * term + offset, q) - frames[0]) + first
