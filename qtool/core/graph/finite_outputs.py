"""Checks that a float model's weights and outputs are finite, and finds the module that made them
otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.nn.parameter import is_lazy

from qtool.core.data import Batch
from qtool.core.errors import DataError
from qtool.core.graph.float_graph import FloatGraph
from qtool.core.graph.nodes import name_of
from qtool.core.remedies import DataEdit, ModelEdit, OtherFile
from qtool.core.user_code import attribute

_COMPUTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_weights(model: nn.Module | ExportedProgram) -> None:
    """Check the parameters and the BatchNorm statistics of a float model.

    Other constants may be infinite, as masks are; so may all of a model with the attribute
    `qtool_masks`, whose parameters are weights and other constants alike. Weights without values
    are passed over, and those of types in which torch does not compute.

    Raises:
        DataError: one holds NaN or Inf; names the first, and how many do.
    """
    statistics = ((n, t) for n, t in model.named_buffers() if ".running_" in f".{n}")
    named = (*model.named_parameters(), *statistics)
    broken = [(n, what) for n, t in named if _has_values(t) and (what := _not_finite(t))]
    if attribute(model, "qtool_masks"):
        broken = [(n, what) for n, what in broken if what == "NaN"]
    if broken:
        name, what = broken[0]
        more = f" (and {len(broken) - 1} others)" if len(broken) > 1 else ""
        raise DataError(
            f"the weights of the model hold {what}: '{name}'{more}; the checkpoint is damaged or "
            "its training diverged",
            OtherFile("take another one"),
        )


def _has_values(tensor: torch.Tensor) -> bool:
    known = tensor.dtype in _COMPUTED and tensor.layout == torch.strided
    return known and not tensor.is_meta and not is_lazy(tensor)


def check_outputs(graph: FloatGraph, batch: Batch, outputs: Iterable[Any], index: int) -> None:
    """Check outputs of a float graph.

    Args:
        graph: the float graph.
        batch: its bound arguments, for which it is run again if an output is not finite.
        outputs: tensors, or leaves of another kind; those of the model and of the graph, or of
            one.
        index: number of the batch, for the message.

    Raises:
        DataError: an output is NaN or Inf; names the first module whose output is.
    """
    for name, output in zip(itertools.cycle(graph.outputs), outputs, strict=False):
        if (what := _not_finite(output)) is None:
            continue
        finder = _FirstNotFinite(graph.module, what)
        with torch.no_grad():
            finder.run(*graph.leaves_of(batch), enable_io_processing=False)
        where = "" if finder.first is None else f", first after {name_of(finder.first)}"
        problem = f"batch {index}: output '{name}' of the float model is {what}{where}"
        raise DataError(problem, *NOT_FINITE)


NOT_FINITE = (
    ModelEdit("repair the model or its weights"),
    DataEdit("give data as it was trained on, without samples of padding alone"),
)


class _FirstNotFinite(fx.Interpreter):
    """Runs a graph and finds the first node whose result has NaN, or Inf.

    Attributes:
        first: that node; None without one.
    """

    def __init__(self, module: fx.GraphModule, what: str) -> None:
        super().__init__(module)
        self.what = what
        self.first: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if self.first is None and n.op.startswith("call") and _not_finite(result) == self.what:
            self.first = n
        return result


def _not_finite(value: Any) -> str | None:
    """Return NaN or Inf if a tensor has one; None for anything else."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    if bool(torch.isfinite(value.sum())) or bool(torch.isfinite(value).all()):
        return None
    return "NaN" if bool(torch.isnan(value).any()) else "Inf"
