"""Time per node from the profile of ONNX Runtime, by the names of the user's model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from qtool.backends.model_file import OTHER, NodeKernel, median_of_ticks
from qtool.backends.onnx.graph import Graph
from qtool.backends.onnx.reading import graph_of, input_at, name_of
from qtool.backends.onnx.storage import load_outline
from qtool.backends.onnxruntime.session import (
    RUNTIME,
    cpu_session,
    feeds,
    read_graph,
    without_suffix,
    write_graph,
)
from qtool.core import value_names as names
from qtool.core.atomic import scratch_folder
from qtool.core.errors import VerificationError
from qtool.core.types import Array

_CLAMPS = ("Relu", "Clip")


def profile_file(
    file: Path, inputs: Sequence[Array], threads: int, runs: int
) -> dict[str, NodeKernel]:
    """Return kernels and microseconds per run of each name in the file.

    Raises:
        VerificationError: the runtime fails on it.
    """
    with scratch_folder() as folder:
        events, optimised = _events(file, inputs, threads, runs, folder)
    names = _names(graph_of(load_outline(file)), graph_of(optimised))
    kernels: dict[str, dict[str, None]] = {}
    spent: dict[str, list[float]] = {}
    for number, run in enumerate(events):
        for event in run:
            name = names.get(str(event["name"]).removesuffix("_kernel_time"), OTHER)
            kernels.setdefault(name, {})[str(event["args"].get("op_name", "?"))] = None
            spent.setdefault(name, [0.0] * runs)[number] += float(event["dur"])
    return {
        name: NodeKernel(" + ".join(kernels[name]), median_of_ticks(spent[name]))
        for name in kernels
    }


def _events(
    file: Path, inputs: Sequence[Array], threads: int, runs: int, folder: Path
) -> tuple[list[list[Mapping[str, Any]]], onnx.ModelProto]:
    """Return the node events of each of `runs` runs after a warm-up, and the optimized graph."""
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    write_graph(options, folder / "optimised.onnx")
    try:
        model = cpu_session(str(file), options, threads)
        feed = feeds(model, inputs)
        for _ in range(runs + 1):
            model.run(None, feed)
    except Exception as error:
        raise VerificationError(f"{file}: {RUNTIME} fails on it: {error}") from error
    events = json.loads(Path(model.end_profiling()).read_text(encoding="utf-8"))
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    each = len(nodes) // (runs + 1)
    starts = range(each, each * (runs + 1), each) if each else ()
    return [nodes[i : i + each] for i in starts], read_graph(folder / "optimised.onnx")


def _names(source: Graph, optimised: Graph) -> dict[str, str]:
    """Return the operator of the file that each node of the optimized graph belongs to.

    The runtime keeps node names with a suffix; a new node is identified by its output tensor. A
    QuantizeLinear counts towards the operator whose output it rounds, a clamp towards the operator
    before it: usually they are one kernel. Nodes that write one operator together count as one.
    """
    known = {str(n.name) for n in source if n.name}
    whole = {str(n.name): names.operator_of(str(n.name), n.op_type) for n in source}
    makers = {name_of(o): str(n.name) for n in source for o in n.outputs if n.name}
    clamped = {n.name: makers.get(name_of(input_at(n, 0))) for n in source if n.op_type in _CLAMPS}
    operators = {}
    for node in optimised:
        plain = without_suffix(str(node.name))
        name = plain if plain in known else None
        for output in node.outputs:
            name = name or makers.get(without_suffix(name_of(output)))
        name = _base(name, known, source) if name else OTHER
        name = clamped.get(name) or name
        part_of = whole.get(name, name)
        operators[str(node.name)] = part_of if part_of in known else name
    return operators


def _base(name: str, known: set[str], source: Graph) -> str:
    short = names.base_of(name)
    known_too = short in known or any(i.name == short for i in source.inputs)
    return short if short is not None and known_too else name
