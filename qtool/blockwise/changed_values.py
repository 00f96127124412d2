"""What the steps of a block changed: on disk, and as deferred tensors of the whole graph.

Weights are stored as codes, so that they take no more disk than in the file that is written of
them. All else is as it was in the float model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.backends.kernels.params import same_params
from qtool.blockwise.checkpoint import file_digest
from qtool.core import graph as G
from qtool.core.atomic import atomic_path
from qtool.core.graph.deferred import Slices, defer
from qtool.core.quant_params import QuantParams
from qtool.planning.plan import Kind, QuantPlan

_CODES, _VALUES, _SCALE, _ZERO = "codes/", "values/", "scale/", "zero/"


def save_changed_values(path: Path, start: ConversionState, end: ConversionState) -> str:
    """Write what the steps between two states of a block changed to a file; return its digest."""
    assert start.parameters is not None
    assert end.parameters is not None
    before, after = start.graph.module, end.graph.module
    points, tensors = _weight_points(end.graph.graph, end.plan), dict[str, torch.Tensor]()
    for name, (old, new) in _pairs(before, after):
        if old is new or torch.equal(old, new):
            continue
        values = new.detach().cpu()
        if name in points:
            codes = end.parameters.params[points[name]].quantize(values.float())
            tensors[f"{_CODES}{name}"] = codes
        else:
            tensors[f"{_VALUES}{name}"] = values
    for name, params in end.parameters.params.items():
        if not same_params(start.parameters.params[name], params):
            tensors[f"{_SCALE}{name}"], tensors[f"{_ZERO}{name}"] = params.scale, params.zero_point
    with atomic_path(path) as temporary:
        save_file({k: v.clone().contiguous() for k, v in tensors.items()}, temporary)
        return file_digest(temporary)


def with_changed_values(
    module: fx.GraphModule, plan: QuantPlan, params: dict[str, QuantParams], file: Path
) -> None:
    """Set what a block changed in the whole graph, as deferred tensors, and its parameters.

    Args:
        module: the whole graph; changed in place.
        plan: its plan.
        params: point -> parameters; changed in place.
        file: what `save_changed_values` wrote.
    """
    points, held = _weight_points(module.graph, plan), dict[str, fx.Node]()
    for node in module.graph.find_nodes(op="get_attr"):
        held[str(node.target)] = node
    with safe_open(file, "pt") as stored:
        keys = list(stored.keys())
        for name in _names(keys, _SCALE):
            scale, zero = (stored.get_tensor(f"{kind}{name}") for kind in (_SCALE, _ZERO))
            params[name] = replace(params[name], scale=scale, zero_point=zero)
    new = {name: partial(_read, file, f"{_VALUES}{name}", None) for name in _names(keys, _VALUES)}
    for name in _names(keys, _CODES):
        new[name] = partial(_read, file, f"{_CODES}{name}", params[points[name]])
    for name, read in new.items():
        G.set_tensor(module, held[name], defer(G.tensor(module, held[name]), read))


def _names(keys: Iterable[str], kind: str) -> list[str]:
    return [key.removeprefix(kind) for key in keys if key.startswith(kind)]


def _read(file: Path, key: str, params: QuantParams | None, slices: Slices | None) -> torch.Tensor:
    with safe_open(file, "pt") as stored:
        tensor: torch.Tensor = stored.get_tensor(key)
    values = tensor if params is None else params.dequantize(tensor)
    return values if slices is None else values[slices]


def _pairs(
    before: fx.GraphModule, after: fx.GraphModule
) -> Iterator[tuple[str, tuple[torch.Tensor, torch.Tensor]]]:
    """Yield each attribute with its tensor before and after."""
    nodes = {str(n.target): n for n in after.graph.find_nodes(op="get_attr")}
    for node in before.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        if name in nodes:
            yield name, (G.tensor(before, node), G.tensor(after, nodes.pop(name)))


def _weight_points(graph: fx.Graph, plan: QuantPlan) -> dict[str, str]:
    """Return attribute -> the point of a weight that has one alone."""
    names = {G.name_of(n): str(n.target) for n in graph.find_nodes(op="get_attr")}
    pairs = [(names[p.tensor], p.name) for p in plan if p.kind is Kind.WEIGHT and p.edges]
    attributes = [attribute for attribute, _ in pairs]
    return {attribute: name for attribute, name in pairs if attributes.count(attribute) == 1}
