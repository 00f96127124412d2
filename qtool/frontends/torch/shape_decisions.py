"""Finds sizes at which the captured graph differs from the model, since the model branches on them.

torch.export follows the sizes of the example. A branch on one of them, or int(size / 2), becomes
constant; the condition for it is a guard of the shape environment, and torch reports only guards
that are plain ranges. So where a guard fails at sizes near those of the example, model and graph
are compared. Most guards concern only strides, and are not reported.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import sympy  # type: ignore[import-untyped]  # it ships no type information
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph.devices import float32_convolutions
from qtool.core.graph.float_tolerance import COMPARED_SAMPLES, largest_distance
from qtool.core.graph.other_sizes import MIN_SIZE, resize
from qtool.core.process_lock import silence_logging

MAX_RUNS = 6  # maximum number of calls of the model
MAX_DIFFERENCE = 0.01  # of the range; more is not rounding
BRANCHES = "the model branches on that"


def run_model(model: nn.Module, batch: Batch) -> list[Any]:
    """Return the leaves of a model's outputs on the CPU, from inputs on any device.

    Inputs are copied, as a model may write to them.
    """
    device = G.device_of(model)
    batch = batch.map_tensors(_copy).to(device)
    with torch.no_grad(), silence_logging(), float32_convolutions(device):
        leaves = pytree.tree_leaves(model(*batch.args, **batch.kwargs))
    return [x.cpu() if isinstance(x, torch.Tensor) else x for x in leaves]


def shape_conditions(model: nn.Module, graph: G.FloatGraph, ranges: bool) -> tuple[str, ...]:
    """Return the conditions on sizes under which the graph equals the model, as notes.

    Args:
        model: the model.
        graph: captured from it.
        ranges: also check sizes outside of `FloatGraph.constraints`.
    """
    guards, violated, runs = _guards(graph), dict[Any, None](), 0
    batch = graph.smaller(Batch(*graph.example), COMPARED_SAMPLES)
    for sizes in _nearby_sizes(graph, batch, ranges) if guards else ():
        failing = [g for g in guards if not _holds(g, graph, sizes)]
        if not failing or not violated.keys().isdisjoint(failing):
            continue
        if _differs(model, graph, batch, sizes):
            violated[failing[0]] = None
        runs += 1
        if runs == MAX_RUNS:
            break
    return tuple(condition_sentence(guard, graph) for guard in violated)


def _guards(graph: G.FloatGraph) -> list[sympy.Basic]:
    env = G.fake_mode(graph.graph).shape_env
    exprs = [] if env is None else [guard.expr for guard in env.guards]
    named = [e for e in exprs if {str(s) for s in e.free_symbols} <= graph.dims.keys()]
    return [e for e in named if e.free_symbols]


def _nearby_sizes(graph: G.FloatGraph, batch: Batch, ranges: bool) -> Iterator[Mapping[str, int]]:
    """Yield the sizes of a batch with one size changed."""
    sizes: dict[str, int] = {}
    for spec, t in zip(graph.inputs, graph.tensors_of(batch), strict=True):
        sizes |= {n: s for n, s in zip(spec.shape, t.shape, strict=True) if isinstance(n, str)}
    for name, size in sizes.items():
        for other in dict.fromkeys((size - 1, size // 2, size + 1, size - 2)):
            if other >= MIN_SIZE and (ranges or _inside(graph, name, other)):
                yield {**sizes, name: other}


def _inside(graph: G.FloatGraph, name: str, size: int) -> bool:
    bounds = [b for s, b in graph.constraints.items() if graph.dims.get(str(s)) == name]
    return all(b.lower <= size <= b.upper for b in bounds)


def _holds(guard: sympy.Basic, graph: G.FloatGraph, sizes: Mapping[str, int]) -> bool:
    """Return whether a guard holds; True if that is unknown."""
    names = {s: graph.dims[str(s)] for s in guard.free_symbols}
    known = {s: sympy.Integer(sizes[n]) for s, n in names.items() if n in sizes}
    try:
        return bool(guard.xreplace(known) != sympy.false)
    except (ArithmeticError, TypeError, ValueError, AssertionError):  # an intermediate size of 0
        return True


def _differs(model: nn.Module, graph: G.FloatGraph, batch: Batch, sizes: Mapping[str, int]) -> bool:
    """Return whether the model runs at these sizes with other results than the graph."""
    own, batch = batch, resize(graph, batch, sizes)
    try:
        expected = [x for x in run_model(model, batch) if isinstance(x, torch.Tensor)]
    except (Exception, SystemExit):  # noqa: BLE001  # the model does not support these sizes
        return False
    try:
        leaves = graph.leaves_of(batch)  # node by node, since the module would check ranges
        with torch.no_grad():
            results = fx.Interpreter(graph.module).run(*leaves, enable_io_processing=False)
        actual = [x for x in pytree.tree_leaves(results) if isinstance(x, torch.Tensor)]
    except Exception:  # noqa: BLE001  # torch raises various types
        return True
    if len(expected) != len(actual) or largest_distance(expected, actual)[1] <= MAX_DIFFERENCE:
        return len(expected) != len(actual)
    usual = [x for x in run_model(model, own) if isinstance(x, torch.Tensor)]
    return largest_distance(expected, actual, usual)[1] > MAX_DIFFERENCE


def _copy(x: Any) -> Any:
    return x.clone() if isinstance(x, torch.Tensor) else x


@contextmanager
def open_lengths(model: nn.Module) -> Iterator[None]:
    """Let the files of a model's classes read the first size of a tensor by `len`, and keep sizes
    open that they cast by transformers' `torch_int`."""
    scopes = {id(s): s for m in model.modules() if (s := _globals(m)) is not None}
    with ExitStack() as stack:
        for scope in scopes.values():
            cast = {"torch_int": _integer} if "torch_int" in scope else {}
            stack.enter_context(mock.patch.dict(scope, {"len": scope.get("len", _length), **cast}))
        yield


def _globals(module: nn.Module) -> dict[str, Any] | None:
    """Return the names of the file that defines how a module computes; None of torch's own."""
    if type(module).__module__.partition(".")[0] == "torch":
        return None
    return getattr(type(module).forward, "__globals__", None)


def _length(values: Any) -> Any:
    if isinstance(values, torch.Tensor) and values.dim():
        return values.shape[0]
    return builtins.len(values)


def _integer(value: Any) -> Any:
    return value if isinstance(value, torch.SymInt) else int(value)


# Says a condition on dynamic sizes in the terms of the user: input, dimension and which sizes.


def condition_sentences(
    conditions: Iterable[tuple[sympy.Basic, str]], graph: G.FloatGraph
) -> list[str]:
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


def condition_sentence(guard: sympy.Basic, graph: G.FloatGraph, why: str = BRANCHES) -> str:
    """Return the note on a condition that sizes have to meet.

    Args:
        guard: a sympy condition on symbols of `graph.dims`.
        graph: captured from the model.
        why: the reason of the condition.
    """
    parts: dict[Any, list[sympy.Basic]] = {}  # of each set of symbols: a sentence each
    for part in guard.args if isinstance(guard, sympy.And) else [guard]:
        parts.setdefault(tuple(sorted(part.free_symbols, key=str)), []).append(part)
    where = " and ".join(
        _where(sympy.And(*alike), symbols, graph)
        for symbols, alike in sorted(parts.items(), key=str)
    )
    remedy = "; // keeps a size where int(a / b) fixes it" if "trunc(" in where else ""
    return f"the file is correct only where {where}: {why}{remedy}"


def _where(guard: sympy.Basic, symbols: Sequence[sympy.Symbol], graph: G.FloatGraph) -> str:
    names = {s: graph.dims[str(s)] for s in symbols}
    places = [_place(graph, names[s]) for s in symbols]
    return f"{_formula(guard, names)} ({', '.join(places)})"


def _place(graph: G.FloatGraph, name: str) -> str:
    """Return the first dimension of a name, with its input."""
    places = ((i.name, axis) for i in graph.inputs for axis, s in enumerate(i.shape) if s == name)
    source, axis = next(places, ("", 0))
    return f"dimension {axis} ({name}) of input '{source}'" if source else name


def _formula(guard: sympy.Basic, names: Mapping[sympy.Symbol, str]) -> str:
    symbols = {s: sympy.Symbol(name, integer=True) for s, name in names.items()}
    text = str(PythonPrinter().doprint(guard.xreplace(symbols)))
    return re.sub(r"(\.\d+?)0+\b", r"\1", text).replace("torch.sym_float(", "float(")
