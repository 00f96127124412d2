"""What a person adds from their own file: operators, observers, passes, steps and targets.

Each is one call, made before a model is captured; nothing in qtool is edited. What is added stands
in plans, files, audits and reports like what was there. A second one of the same name is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qtool import observers, passes
from qtool.core import ops
from qtool.core.errors import CalibrationError, PassError, PlanError
from qtool.core.ops.custom import Body
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
    """Adds an operator of torch.library, written in Python or in a C++ extension.

    It is kept whole: never traced into, left in float, and run by ONNX Runtime.

    Args:
        operator: what `torch.library.custom_op` returned, an operator such as
            `torch.ops.cells.step`, or its name, "cells::step". It needs a fake function (see
            `torch.library.register_fake`) and may not change its arguments.
        onnx: what the file holds for it. Either a function: an `onnxscript` function or an
            `onnx.FunctionProto` of a domain of its own (a list, where it calls others: itself
            first), whose inputs are the operator's tensors in order, and whose attributes are
            called as its other arguments; the file has one node of that name, and the function, so
            that ONNX Runtime needs no library (OpenVINO takes no functions). Or a callable that
            takes the operator's arguments while the graph is traced and calls `op.Add(...)` and the
            like (see `qtool.core.ops.onnx_forms`): the file has those nodes.
        weights: names of the arguments that are stored as int8 codes and dequantized in front of
            the operator, where they are parameters of the model.
        channel_axis: where the output channels of these weights lie.
        macs: takes the operator's arguments, each tensor as a tuple of its sizes, and gives the
            multiply-accumulates of the call; what is left out counts as none.
        kernel: what the integer engine runs in place of the runtime's: tensors by position, all
            else by name. It has to round as the runtime does, or `verify` says that it does not.

    Raises:
        PlanError: the operator is registered already or cannot be kept; says why.
    """
    ops.register(ops.custom_op_row(operator, onnx, weights, channel_axis, macs, kernel))


def register_observer(
    name: str,
    *,
    statistic: observers.StatisticType,
    estimate: Callable[..., observers.Range],
    options: Mapping[str, Option] | None = None,
) -> None:
    """Adds an observer, to be named in `calibrate`, on the command line and in recipes.

    Args:
        name: letters, digits and underscores.
        statistic: what is remembered of a tensor: `qtool.observers.MinMax`, `MovingAverage`,
            `Histogram`, or a class like them.
        estimate: takes the statistic, the options by name, the integer type and whether zero is
            its middle; gives the lowest and the highest value, float64 tensors: rank 0 for a whole
            tensor, [channels] for one with an axis.
        options: what can be set, the main one first.

    Raises:
        CalibrationError: the name is taken or is none, or `estimate` cannot be called.
    """
    if not name.isidentifier():
        raise CalibrationError(
            f"an observer cannot be called '{name}'; use letters, digits and underscores"
        )
    if not all(map(callable, (statistic, estimate))):
        raise CalibrationError(f"observer '{name}' needs a statistic and a function of it")
    observers.register(Observer(name, statistic, estimate, {} if options is None else options))


def register_target(target: Target) -> None:
    """Adds a target: a table as those in `qtool.planning.targets`, or one of them with `replace`.

    Raises:
        PlanError: its name is taken, or its tables name what is not there or say two things of one
            operator.
    """
    where = f"target '{target.name}'"
    known = {op.key for op in ops.rows()}
    named = {*target.kernels, *target.no_kernel, *target.weight_only, *target.file.implicit_fusions}
    if unknown := sorted((named | target.file.passthrough_on_codes) - known):
        raise PlanError(f"{where} names '{unknown[0]}', which is no operator; see qtool.core.ops")
    if twice := sorted(target.kernels.keys() & target.no_kernel.keys()):
        raise PlanError(f"{where} has a kernel of '{twice[0]}' and a reason for none; keep one")
    if unknown := sorted(set(target.rewrites) - passes.FOR_TARGETS.keys()):
        raise PlanError(f"{where} asks for the pass '{unknown[0]}'; register that first")
    targets.register(target)


def register_pass(
    graph_pass: GraphPass, *, target: str | None = None, before: str | None = None
) -> None:
    """Adds a rewrite that keeps the function of a graph; it is held to the contract of all passes.

    Args:
        graph_pass: see `qtool.passes.GraphPass`; one for a target gives its reason.
        target: for this target alone, on a copy of the canonical graph; else for every model.
        before: the pass in front of which it runs; by default it is the last one.

    Raises:
        PassError: its name is taken, or there is no pass `before` it, or it has no reason.
        PlanError: there is no such target.
    """
    name = graph_pass.name
    if any(p.name == name for p in (*passes.CANONICAL, *passes.FOR_TARGETS.values())):
        raise PassError(f"pass '{name}' is registered already; register it once")
    chosen = None if target is None else targets.target(target)
    order = [p.name for p in passes.CANONICAL] if chosen is None else list(chosen.rewrites)
    if before is not None and before not in order:
        raise PassError(f"there is no pass '{before}' to run '{name}' before; there are: {order}")
    at = len(order) if before is None else order.index(before)
    if chosen is None:
        passes.CANONICAL.insert(at, graph_pass)
    elif not graph_pass.reason:
        raise PassError(f"pass '{name}' for {chosen.name} has no reason; say what it is good for")
    else:
        passes.FOR_TARGETS[name] = graph_pass
        order.insert(at, name)
        targets.TARGETS[chosen.name] = replace(chosen, rewrites=tuple(order))
