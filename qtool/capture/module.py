"""From an nn.Module to the float graph, through torch.export."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from qtool import graph as G
from qtool.capture.program import first_line, from_program
from qtool.data import Batch
from qtool.errors import CaptureError

__all__ = ["capture_module"]

DynamicShapes = Mapping[str, Mapping[int, str]]
_USER_LINE = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*(\S.*)')


def capture_module(
    model: nn.Module, example: Batch, dynamic: DynamicShapes | None = None
) -> G.FloatGraph:
    """Captures a model in eval mode with torch.export.

    Args:
        model: the user's module; it is read, never changed.
        example: one batch of inputs.
        dynamic: input name -> {dimension: name} of the dimensions that vary at run time; by default
            dimension 0 of every tensor input that has one ("batch").

    Raises:
        CaptureError: a module is in training mode, the inputs do not fit the model's forward, or
            torch.export cannot trace it; with the line of the user's code where it is known.
    """
    _refuse_training(model)
    example = _at_least_two(example, dynamic)
    spec = _dynamic_spec(model, example, dynamic)
    try:
        with _quiet():
            program = torch.export.export(
                model, example.args, example.kwargs, dynamic_shapes=spec, strict=False
            )
    except Exception as error:
        raise _explained(model, example, error) from error
    graph = from_program(program)
    _name_dims(graph, dynamic)
    return graph


def _refuse_training(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if module.training and (not path or type(module).__module__.startswith("torch.nn")):
            where = f"module '{path}' ({type(module).__name__})" if path else "the model"
            raise CaptureError(f"{where} is in training mode; call model.eval() first")


def _at_least_two(example: Batch, dynamic: DynamicShapes | None) -> Batch:
    """torch.export takes a size of 1 for a constant: a batch of one is doubled."""
    if dynamic is not None:
        return example

    def double(x: Any) -> Any:
        one = isinstance(x, torch.Tensor) and x.dim() > 0 and x.shape[0] == 1
        return torch.cat([x, x]) if one else x

    return Batch(*pytree.tree_map(double, (example.args, example.kwargs)))


def _dynamic_spec(model: nn.Module, example: Batch, dynamic: DynamicShapes | None) -> Any:
    named = example.named(model)
    if dynamic is not None:
        unknown = sorted(set(dynamic) - set(named))
        if unknown:
            raise CaptureError(
                f"dynamic dimensions were asked for '{unknown[0]}', which is no input; "
                f"the inputs are {', '.join(named)}"
            )

    def spec(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return None
        if dynamic is None:
            return {0: Dim.AUTO} if leaf.dim() else None
        wanted = dynamic.get(str(getattr(path[0], "key", path[0])), {})
        return dict.fromkeys(wanted, Dim.DYNAMIC) or None

    return pytree.tree_map_with_path(spec, dict(named))


def _name_dims(graph: G.FloatGraph, dynamic: DynamicShapes | None) -> None:
    """Dimensions the user named keep that name."""
    if dynamic is None:
        return
    for node in G.placeholders(graph.graph):
        for axis, name in dynamic.get(str(node.target), {}).items():
            graph.dims[str(G.shape(node)[axis])] = name
    graph.inputs = tuple(
        G.Input(i.name, i.dtype, tuple(dynamic.get(i.name, {}).get(k, s) for k, s in enumerate(i.shape)))
        for i in graph.inputs
    )


def _explained(model: nn.Module, example: Batch, error: Exception) -> CaptureError:
    text = str(error)
    lines = [m for m in _USER_LINE.findall(text) if "/torch/" not in m[0]]
    where = f" at {lines[-1][0]}:{lines[-1][1]}: {lines[-1][2]}" if lines else ""
    if "data-dependent" in text:
        return CaptureError(
            f"the model decides by the values of its data{where}; a graph has one path: replace the "
            "branch by torch.where or torch.cond, or fix it by a constructor argument"
        )
    if problem := _eager_problem(model, example):
        return CaptureError(f"the model does not run on the given inputs: {problem}")
    return CaptureError(f"torch.export cannot capture the model{where}: {first_line(error)}")


def _eager_problem(model: nn.Module, example: Batch) -> str | None:
    """What the model itself says of these inputs, if it refuses them."""
    try:
        with torch.no_grad():
            model(*example.args, **example.kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {first_line(error)}"
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch.export's own warnings from the user: what matters is raised as an error."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
