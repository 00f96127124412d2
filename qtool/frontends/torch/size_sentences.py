"""Says a condition on dynamic sizes in the terms of the user: input, dimension and which sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import sympy  # type: ignore[import-untyped]  # it ships no type information
from torch.utils._sympy.printers import PythonPrinter

from qtool.core import graph as G
from qtool.core.data import Batch

BRANCHES = "the model branches on that"
_DENSE = 128  # sizes from 1 on, each of which is tried
_LARGEST = 1 << 20
_MULTIPLES = 8  # of each number of a condition, and their neighbours, are tried
_MOST = 3  # ranges, or remainders, that a sentence lists
Holds = Callable[[int], bool]


def condition_sentences(conditions: Iterable[tuple[Any, str]], graph: G.FloatGraph) -> list[str]:
    """Return the note on each condition that some sizes of a graph may miss.

    Args:
        conditions: (sympy condition, reason).
        graph: captured from the model.
    """
    symbols = graph.dims.keys()
    return [
        condition_sentence(condition, graph, why)
        for condition, why in sorted(conditions, key=str)
        if condition.free_symbols and {str(s) for s in condition.free_symbols} <= symbols
    ]


def condition_sentence(guard: Any, graph: G.FloatGraph, why: str = BRANCHES) -> str:
    """Return the note on a condition that sizes have to meet.

    Args:
        guard: a sympy condition on symbols of `graph.dims`.
        graph: captured from the model.
        why: the reason of the condition.
    """
    symbols = sorted(guard.free_symbols, key=str)
    names = {s: graph.dims[str(s)] for s in symbols}
    places = [_place(graph, names[s]) for s in symbols]
    text = _formula(guard, names)
    sizes = None
    if len(symbols) == 1:
        sizes = _sizes(guard, symbols[0], _example(graph, names[symbols[0]]))
    where = f"{text} ({', '.join(places)})" if sizes is None else f"{places[0]} is {sizes}"
    remedy = "; // keeps a size where int(a / b) fixes it" if "trunc(" in text else ""
    return f"the file is correct only where {where}: {why}{remedy}"


def _place(graph: G.FloatGraph, name: str) -> str:
    """Return the first dimension of a name, with its input."""
    places = ((i.name, axis) for i in graph.inputs for axis, s in enumerate(i.shape) if s == name)
    source, axis = next(places, ("", 0))
    return f"dimension {axis} ({name}) of input '{source}'" if source else name


def _example(graph: G.FloatGraph, name: str) -> int:
    tensors = zip(graph.inputs, graph.tensors_of(Batch(*graph.example)), strict=True)
    sizes = (n for i, t in tensors for s, n in zip(i.shape, t.shape, strict=True) if s == name)
    return next(sizes, 1)


def _formula(guard: Any, names: dict[Any, str]) -> str:
    symbols = {s: sympy.Symbol(name, integer=True) for s, name in names.items()}
    text = str(PythonPrinter().doprint(guard.xreplace(symbols)))
    return re.sub(r"(\.\d+?)0+\b", r"\1", text).replace("torch.sym_float(", "float(")


def _holds(guard: Any, symbol: Any) -> Holds:
    def holds(size: int) -> bool:
        try:
            return bool(guard.xreplace({symbol: sympy.Integer(size)}) == sympy.true)
        except (ArithmeticError, TypeError, ValueError, AssertionError):  # no such size
            return False

    return holds


def _sizes(guard: Any, symbol: Any, example: int) -> str | None:
    """Return the sizes at which a condition holds, in words; None where they follow no rule that is
    short.

    Args:
        guard: the condition.
        symbol: its only one.
        example: a size at which it holds.
    """
    holds = _holds(guard, symbol)
    numbers = {abs(int(n)) for n in guard.atoms(sympy.Integer)} | {2}
    near = {
        n * k + d for n in (*numbers, example) for k in range(1, _MULTIPLES) for d in (-1, 0, 1)
    }
    tried = {*range(1, _DENSE), *near, *(2**k for k in range(20)), _LARGEST}
    known = {size: holds(size) for size in sorted(tried) if 0 < size <= _LARGEST}
    if all(known.values()):
        return None
    periods = sorted({*range(2, _DENSE // 2), *(n for n in numbers if n > 1)})
    texts = (_remainders(known, period) for period in periods)
    return next(filter(None, texts), None) or _ranges(known, holds)


def _remainders(known: dict[int, bool], period: int) -> str | None:
    rest = {size % period for size, held in known.items() if held}
    if any((size % period in rest) != held for size, held in known.items()):
        return None
    if rest == {0}:
        return f"a multiple of {period}"
    if rest == set(range(1, period)):
        return f"no multiple of {period}"
    terms = [f"{period}n + {r}" if r else f"{period}n" for r in sorted(rest)]
    return f"{_either(terms)} for a whole n" if len(terms) <= _MOST else None


def _ranges(known: dict[int, bool], holds: Holds) -> str | None:
    edges = [1] if known[1] else []
    for low, high in pairwise(known):
        if known[low] != known[high]:
            edges.append(_edge(holds, low, high))
    ranges = list(zip(edges[::2], [e - 1 for e in edges[1::2]], strict=False))
    last = edges[-1] if len(edges) % 2 else None
    if len(ranges) == 1 and last == ranges[0][1] + 2 and ranges[0][0] == 1:
        return f"not {last - 1}"
    texts = [_range(low, high) for low, high in ranges]
    texts += [f"{last} or more"] if last is not None else []
    return _either(texts) if 0 < len(texts) <= _MOST else None


def _edge(holds: Holds, low: int, high: int) -> int:
    """Return the first size from which on a condition is as at `high`."""
    after = holds(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) == after else (middle, high)
    return high


def _range(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{high} or less" if low == 1 else f"{low} to {high}"


def _either(texts: Iterable[str]) -> str:
    parts: Sequence[str] = list(texts)
    return " or ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
