"""Extensions: your own operators, observers, passes, targets, runtimes and formats of files.

Each takes one call before a model is captured. Extensions appear in plans, files, audits and
reports like built-in parts. A second one of the same name is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qtool import observers, passes
from qtool.backends import formats, runtimes
from qtool.backends.model_file import FileFormat
from qtool.backends.onnx.operators import Body, register_custom_operator
from qtool.backends.runtime import Runtime
from qtool.core import ops
from qtool.core.errors import CalibrationError, PassError, PlanError
from qtool.core.option_names import unknown_name
from qtool.core.remedies import CallEdit
from qtool.observers import Observer, Option
from qtool.passes import GraphPass
from qtool.planning import targets
from qtool.planning.targets import Target


def register_operator(
    operator: Any,
    *,
    onnx: Body,
    weights: Sequence[str] = (),
    channel_axis: int = 0,
    macs: Callable[..., int] | None = None,
    kernel: Callable[..., Any] | None = None,
) -> None:
    """Add a torch.library operator, written in Python or in a C++ extension.

    It is never traced into, stays in float, and runs in ONNX Runtime.

    Args:
        operator: the result of `torch.library.custom_op`, an operator such as
            `torch.ops.cells.step`, or its name, "cells::step". It needs a fake function (see
            `torch.library.register_fake`) and may not change its arguments.
        onnx: its form in the file. Either a function: an `onnxscript` function or an
            `onnx.FunctionProto` of its own domain (a list if it calls others: itself first). Its
            inputs are the operator's tensors in order, its attributes have the names of the other
            arguments. The file then has one node and the function, so that ONNX Runtime needs no
            library (OpenVINO does not support functions). Or a callable that takes the operator's
            arguments while the graph is traced and calls `op.Add(...)` and the like (see
            `qtool.backends.onnx.operators.schemas`): the file has those nodes.
        weights: names of arguments to store as int8 codes, dequantized in front of the operator,
            where they are parameters of the model.
        channel_axis: dimension of the output channels of these weights.
        macs: takes the operator's arguments, each tensor as a tuple of its sizes, and returns the
            multiply-accumulates of the call (0 for an operator without products); by default they
            are not known, which the integer share says.
        kernel: replaces the runtime's kernel in the integer engine: tensors by position, other
            arguments by name. It must round as the runtime does, or `verify` reports a difference.

    Raises:
        PlanError: the operator is registered already or cannot be supported; with the reason.
    """
    row = ops.custom_op_row(operator, weights, channel_axis, macs)
    register_custom_operator(row, onnx, kernel)


def register_observer(
    name: str,
    *,
    statistic: observers.StatisticType,
    estimate: Callable[..., observers.Range],
    options: Mapping[str, Option] | None = None,
) -> None:
    """Add an observer, for use by name in `calibrate`, on the command line and in recipes.

    Args:
        name: letters, digits and underscores.
        statistic: collects values of a tensor: `qtool.observers.MinMax`, `MovingAverage`,
            `Histogram`, or a class with the same interface.
        estimate: takes the statistic, the options by name, the integer type and whether the range
            is symmetric; returns the lowest and the highest value as float64 tensors: rank 0 for a
            whole tensor, [channels] for one with an axis.
        options: its options, the main one first.

    Raises:
        CalibrationError: the name is taken or invalid, or `estimate` is not callable.
    """
    if not name.isidentifier():
        raise CalibrationError(
            f"an observer cannot be called '{name}'",
            CallEdit("use letters, digits and underscores"),
        )
    if not all(map(callable, (statistic, estimate))):
        raise CalibrationError(f"observer '{name}' needs a statistic and a function of it")
    observers.register(Observer(name, statistic, estimate, {} if options is None else options))


def register_target(target: Target) -> None:
    """Add a target: a table like those in `qtool.planning.targets`, or one changed by `replace`.

    Raises:
        PlanError: its name is taken, or its tables have unknown or contradicting entries.
    """
    where = f"target '{target.name}'"
    known = {op.key for op in ops.rows()}
    named = {*target.kernels, *target.no_kernel, *target.weight_only, *target.implicit_fusions}
    formats_known = {name for each in formats.FORMATS for name in each.names}
    entries: tuple[tuple[str, Iterable[str], Container[str]], ...] = (
        ("operator", named | target.file.passthrough_on_codes, known),
        ("pass", target.rewrites, passes.FOR_TARGETS),
        ("runtime", filter(None, [target.runtime]), runtimes.RUNTIMES),
        ("format", target.file.formats, formats_known),
    )
    for what, names, registered in entries:
        if unknown := sorted(name for name in names if name not in registered):
            raise PlanError(
                f"{where} has the unknown {what} '{unknown[0]}'", CallEdit("register it first")
            )
    if twice := sorted(target.kernels.keys() & target.no_kernel.keys()):
        raise PlanError(
            f"{where} has a kernel for '{twice[0]}' and a reason why it has none",
            CallEdit("remove one"),
        )
    others = [runtime.name for f in formats.FORMATS for runtime in f.other_runtimes]
    if target.timed_in and target.timed_in not in others:
        sentence = unknown_name("runtime", target.timed_in, others)
        raise PlanError(f"{where} is to be timed elsewhere: {sentence}")
    targets.register(target)


def register_runtime(runtime: Runtime) -> None:
    """Add a runtime of ONNX files: files of targets that name it are verified in it.

    Args:
        runtime: see `qtool.backends.runtime.Runtime`.

    Raises:
        PlanError: its name is taken.
    """
    runtimes.register(runtime)


def register_format(format: FileFormat) -> None:  # noqa: A002  # as `export` calls it
    """Add a format of files, with what writes, opens, runs and checks them.

    A path with its suffix is written in it, and every command reads its files.

    Args:
        format: see `qtool.backends.model_file.FileFormat`.

    Raises:
        PlanError: one of its names, or its suffix, is taken.
    """
    formats.register(format)


def register_pass(
    graph_pass: GraphPass, *, target: str | None = None, before: str | None = None
) -> None:
    """Add a pass, a rewrite that keeps the function of a graph; the pass contract is checked.

    Args:
        graph_pass: see `qtool.passes.GraphPass`; a pass for a target needs a `reason`.
        target: run it for this target only, on a copy of the canonical graph; None: for all models.
        before: name of the pass to run it before; by default it runs last.

    Raises:
        PassError: its name is taken, there is no pass `before`, or a reason is missing.
        PlanError: there is no such target.
    """
    name = graph_pass.name
    if any(p.name == name for p in (*passes.CANONICAL, *passes.FOR_TARGETS.values())):
        raise PassError(f"pass '{name}' is registered already", CallEdit("register it once"))
    chosen = None if target is None else targets.target(target)
    order = [p.name for p in passes.CANONICAL] if chosen is None else list(chosen.rewrites)
    if before is not None and before not in order:
        raise PassError(f"there is no pass '{before}' to run '{name}' before; there are: {order}")
    at = len(order) if before is None else order.index(before)
    if chosen is None:
        passes.CANONICAL.insert(at, graph_pass)
    elif not graph_pass.reason:
        raise PassError(
            f"pass '{name}' for {chosen.name} has no reason",
            CallEdit("set `reason` to what it improves"),
        )
    else:
        passes.FOR_TARGETS[name] = graph_pass
        order.insert(at, name)
        targets.TARGETS[chosen.name] = replace(chosen, rewrites=tuple(order))
