"""Loops that do not end: those that a file states, and a deadline for all others."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import onnx
from onnx import numpy_helper

from qtool.backends.onnx.nested_graphs import inner_graphs
from qtool.core.errors import CaptureError
from qtool.core.progress import track_task
from qtool.core.remedies import ModelEdit
from qtool.core.types import Array

if TYPE_CHECKING:
    import onnxruntime as ort

MAX_RUNS = 100_000_000  # of a loop's body; the runtime takes about a microsecond for each
SECONDS = 20.0
"""Deadline of a run of a model that has a loop."""
_COUNTS = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL)


class DeadlineError(CaptureError):
    """A loop that has not ended at the deadline."""


def endless_loop(graph: onnx.GraphProto, outer: Mapping[str, Array] | None = None) -> str | None:
    """Return what is wrong with a Loop, here or in a subgraph, that runs without end or more than
    MAX_RUNS times on any data; None if there is none.

    Args:
        graph: graph of a file, or of a node in it.
        outer: constants of the graphs around it.
    """
    known = {**(outer or {}), **_constants(graph)}
    for node in graph.node:
        for inner in inner_graphs(node):
            if (reason := endless_loop(inner, known)) is not None:
                return reason
        count, start = (*node.input, "", "")[:2]
        body = next(inner_graphs(node), None)
        if node.op_type != "Loop" or body is None or (count and count not in known):
            continue
        if not _stays_true(start, known, body):
            continue
        runs = int(known[count].reshape(-1)[0]) if count else None
        if runs is None or runs > MAX_RUNS:
            often = "without end" if runs is None else f"{runs:,} times"
            return (
                f"{_label(node)} (Loop) runs {often}: its condition is always true; "
                "give it the number of runs that the model needs"
            )
    return None


def _label(node: onnx.NodeProto) -> str:
    return node.name or next(iter(node.output), "")


def _constants(graph: onnx.GraphProto) -> dict[str, Array]:
    """Return the stored single numbers of a graph that may count or condition a loop; a file that
    nothing has checked may have damaged ones, which are left out."""
    values = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.output:
            values[node.output[0]] = node.attribute[0].t
        elif node.op_type == "Identity" and node.input and node.output:
            source = values.get(node.input[0])
            values |= {} if source is None else {node.output[0]: source}
    arrays = {}
    for name, stored in values.items():
        external = stored.data_location == onnx.TensorProto.EXTERNAL
        if stored.data_type in _COUNTS and not external and list(stored.dims) in ([], [1]):
            with suppress(ValueError):
                arrays[name] = numpy_helper.to_array(stored)
    return arrays


def _stays_true(start: str, known: Mapping[str, Array], body: onnx.GraphProto) -> bool:
    """Return whether the condition of a loop is true at first and after each run of its body."""
    if start and not (start in known and bool(known[start].all())):
        return False
    if len(body.input) < 2 or not body.output:
        return False
    copied = {
        n.output[0]: n.input[0]
        for n in body.node
        if n.op_type == "Identity" and n.input and n.output
    }
    name, stored = body.output[0].name, {**known, **_constants(body)}
    for _ in range(len(copied)):
        name = copied.get(name, name)
    return name == body.input[1].name or (name in stored and bool(stored[name].all()))


def run_within(
    session: ort.InferenceSession,
    feed: Mapping[str, Any],
    graph: onnx.GraphProto,
    names: Sequence[str] | None = None,
) -> list[Any]:
    """Run a session; one of a graph with a loop until the deadline.

    Args:
        session: session of the graph.
        feed: input -> array.
        graph: what runs.
        names: outputs; by default all.

    Raises:
        DeadlineError: a loop has not ended.
        Exception: any that the runtime raises.
    """
    loop = next((n for n in graph.node if _has_loop(n)), None)
    if loop is None:
        return list(session.run(names, dict(feed)))
    import onnxruntime as ort

    options = ort.RunOptions()
    options.log_severity_level = 4
    timer = threading.Timer(SECONDS, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        with track_task(f"running {_label(loop)} ({loop.op_type})", detail=True):
            return list(session.run(names, dict(feed), options))
    except Exception as error:
        if not options.terminate:
            raise
        raise DeadlineError(
            f"{_label(loop)} ({loop.op_type}) has not ended after {SECONDS:.0f} s: a loop "
            "in it may have no end on this data",
            ModelEdit("give it a number of runs"),
        ) from error
    finally:
        timer.cancel()


def _has_loop(node: onnx.NodeProto) -> bool:
    inner = (each for graph in inner_graphs(node) for each in graph.node)
    return node.op_type == "Loop" or any(map(_has_loop, inner))
