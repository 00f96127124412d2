"""One batch size for inputs that torch.export leaves independent.

Where a mask is indexed by sample, as in attention of transformers, no shape says that it has as
many rows as the tokens: torch.export gives both inputs a size of their own. The graph refuses
unequal numbers when it runs, and that decides.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

import qtool.core.graph as G
from qtool.core.data import Batch
from qtool.core.graph.other_sizes import resize

_SIZES = (2, 3)  # unequal, and no 1, which broadcasts


def with_common_batch(graph: G.FloatGraph) -> G.FloatGraph:
    """Return the graph with one name for first sizes that have to be equal: the example has them
    equal, and the graph runs with equal ones alone."""
    example = Batch(*graph.example).to(G.device_of(graph.module))
    first: dict[str, int] = {}
    for spec, tensor in zip(graph.inputs, graph.tensors_of(example), strict=True):
        if spec.shape and isinstance(spec.shape[0], str):
            first[spec.shape[0]] = len(tensor)
    batch, *others = first or ("",)
    few, more = _SIZES

    def runs(**changed: int) -> bool:
        return _runs(graph, resize(graph, example, changed))

    same: dict[str, str] = {}
    for name in others:
        if first[name] != first[batch]:
            continue
        equal = {**dict.fromkeys(same, few), batch: few}
        unequal = [{**equal, name: more}, {**dict.fromkeys(equal, more), name: few}]
        if not all(runs(**each) for each in unequal) and runs(**equal, **{name: few}):
            same[name] = batch
    if not same:
        return graph
    inputs = tuple(
        replace(i, shape=tuple(same.get(str(size), size) for size in i.shape)) for i in graph.inputs
    )
    return replace(
        graph, inputs=inputs, dims={s: same.get(name, name) for s, name in graph.dims.items()}
    )


def _runs(graph: G.FloatGraph, batch: Batch) -> bool:
    try:
        with torch.no_grad():
            fx.Interpreter(graph.module).run(*graph.leaves_of(batch), enable_io_processing=False)
    except Exception:  # noqa: BLE001  # torch's, by operator
        return False
    return True
