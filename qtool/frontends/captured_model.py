"""A model captured and brought to canonical form, ready to be planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from qtool import observers
from qtool.backends.onnx.export import write_float
from qtool.core import graph as G
from qtool.core.data import Batch, batches
from qtool.core.errors import CalibrationError, CaptureError, DataError
from qtool.core.graph import FloatGraph
from qtool.core.graph.batch_norms import batch_norms
from qtool.core.graph.fingerprint import fingerprint
from qtool.core.graph.float_tolerance import COMPARED_SAMPLES, float_tolerance
from qtool.core.graph.process_lock import exclusive
from qtool.core.path_arguments import accepts_paths
from qtool.core.types import ObserverSpec
from qtool.frontends.onnx import OnnxModule, capture_onnx
from qtool.frontends.torch.example_inputs import check_dynamic
from qtool.frontends.torch.export_module import capture_module
from qtool.frontends.torch.exported_program import from_program
from qtool.passes import CANONICAL, FOR_TARGETS, GraphPass, run_passes, same_function
from qtool.planning import targets
from qtool.planning.plan import QuantPlan, Rewrite
from qtool.planning.planner import make_plan
from qtool.planning.recipe import Recipe

DEFAULT_OBSERVER = "percentile"

Model = nn.Module | ExportedProgram
DynamicSizes = Mapping[str, Mapping[int, str]]


class Captured:
    """A model captured and brought to canonical form, ready to be planned.

    Give it to `calibrate` and `convert` instead of the model to capture only once.
    """

    def __init__(
        self,
        graph: FloatGraph,
        fingerprint: str,
        outputs: Sequence[torch.Tensor] | None = None,
        unfolded: FloatGraph | None = None,
    ) -> None:
        """
        Args:
            outputs: of the graph on its example, where they are known.
            unfolded: the graph with its BatchNorms, where it has some.
        """
        self.graph = graph
        self.unfolded = unfolded
        self.fingerprint = fingerprint
        self._outputs = outputs
        self._prepared: dict[str, tuple[FloatGraph, tuple[Rewrite, ...]]] = {}
        self._versions = _versions(graph.module)

    def check_unchanged(self) -> None:
        """Raises CaptureError where the weights, which are the user's own, were changed since."""
        if self._versions != _versions(self.graph.module):
            raise CaptureError(
                "the model's weights were changed since it was captured; capture it again"
            )

    @exclusive
    def for_target(self, name: str) -> tuple[FloatGraph, tuple[Rewrite, ...]]:
        """The graph in the forms that a target is quick with, and what was rewritten."""
        rewrites = targets.target(name).rewrites
        if name not in self._prepared:
            passes = [FOR_TARGETS[p] for p in rewrites]
            graph = replace(self.graph, module=G.clone(self.graph.module))
            before = self._outputs or example_outputs(self.graph)
            self._outputs = None  # may be large, and are not asked for again as a rule
            counts, _ = apply_passes(graph, passes, before)
            used = [p for p in passes if counts[p.name]]
            made = tuple(Rewrite(p.name, counts[p.name], p.reason) for p in used)
            self._prepared[name] = (graph, made)
        return self._prepared[name]

    def plan(
        self,
        target: str = targets.DEFAULT,
        observer: str | ObserverSpec = DEFAULT_OBSERVER,
        recipe: Any = None,
        mode: str | None = None,
        seen: Mapping[str, ObserverSpec] | None = None,
        layers: Mapping[str, str] | None = None,
    ) -> QuantPlan:
        """What would be quantized for a target; prints as a table.

        Args:
            target, observer, recipe, mode: as for `quantize`.
            seen: the observers of tensors that were seen already; see `make_plan`.
            layers: given for a part of a model; see `make_plan`.
        """
        if not isinstance(observer, str | ObserverSpec):
            raise CalibrationError(f"observer is {observer!r}; give one by name")
        spec = observers.parse(observer) if isinstance(observer, str) else observer
        spec = ObserverSpec(spec.name, tuple(observers.options_of(spec).items()))
        graph, rewrites = self.for_target(target)
        chosen = Recipe.of(recipe, mode)
        found = make_plan(graph.graph, targets.target(target), spec, chosen, seen, layers)
        return replace(found, rewrites=rewrites)

    @accepts_paths("path")
    def export_float(self, path: str | Path, target: str = targets.DEFAULT) -> Path:
        """Writes the float model as ONNX in a target's operator set, and returns the path.

        Raises:
            ExportError: an operator cannot be written. FileError: the file cannot be written.
        """
        return write_float(self.graph, path, target)


@exclusive
def capture_model(
    model: Model | Captured, example: Any = None, dynamic: DynamicSizes | None = None
) -> Captured:
    """Captures a model and rewrites it into canonical form.

    Args:
        model: an nn.Module in eval mode, or an ExportedProgram.
        example: one batch of inputs (tensor, tuple or dict); not needed for an ExportedProgram.
        dynamic: input name -> {dimension: name}; by default dimension 0 of every input, "batch".

    Raises:
        CaptureError: the model cannot be captured; says where and what to do.
    """
    if isinstance(model, Captured):
        model.check_unchanged()
        return model
    _check_torch_defaults()
    check_dynamic(dynamic)
    if isinstance(model, ExportedProgram):
        graph = from_program(model)
    elif example is None:
        raise DataError("there is no batch to capture the model with; give at least one")
    elif isinstance(model, OnnxModule):
        graph = capture_onnx(model, next(batches([example], model)), dynamic)
    elif isinstance(model, nn.Module):
        graph = capture_module(model, next(batches([example], model)), dynamic)
    else:
        raise CaptureError(
            f"a model is an nn.Module or an ExportedProgram, not a {type(model).__name__}; "
            "qtool.frontends.load_model reads files and folders"
        )
    mark = fingerprint(graph.module)
    normed = bool(batch_norms(graph.module))
    unfolded = replace(graph, module=G.clone(graph.module)) if normed else None
    _, outputs = apply_passes(graph, CANONICAL, example_outputs(graph))
    return Captured(graph, mark, outputs, unfolded)


def _check_torch_defaults() -> None:
    """What torch makes of a number has to hold it."""
    if torch.get_default_dtype() not in (torch.float32, torch.float64):
        raise CaptureError(
            f"torch's default dtype is {torch.get_default_dtype()}, in which qtool cannot compute; "
            "call torch.set_default_dtype(torch.float32) before it"
        )
    if torch.get_default_device().type == "meta":
        raise CaptureError(
            "torch's default device is 'meta', which has no values; leave its context first"
        )


def _versions(module: nn.Module) -> list[tuple[int, int]]:
    """Where each tensor lies, and how often torch saw it written to."""
    found = module.state_dict(keep_vars=True).values()
    return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in found]


def apply_passes(
    graph: FloatGraph, passes: Sequence[GraphPass], before: Sequence[torch.Tensor]
) -> tuple[dict[str, int], Sequence[torch.Tensor]]:
    """Runs passes in place, and shows on the example that the graph computes what it did.

    Args:
        before: the outputs of the graph as it is given.

    Returns how often each pass applied, and the outputs of the graph as it is now.
    """
    given = replace(graph, module=G.clone(graph.module))
    counts = run_passes(graph.module, passes)
    if not any(counts.values()):
        return counts, before
    after = example_outputs(graph)
    with torch.no_grad():
        same_function(before, after, noise=lambda: max(_noise(given), _noise(graph)))
    return counts, after


def _noise(graph: FloatGraph) -> float:
    """Of either graph: what a pass folds may be what lost the digits."""
    few = _first_samples(graph)
    return float_tolerance(graph.module, few.args, few.kwargs)


def example_outputs(graph: FloatGraph) -> list[torch.Tensor]:
    """What the graph computes on the first `COMPARED` samples of its example."""
    few = _first_samples(graph)
    with torch.no_grad():
        found: list[torch.Tensor] = pytree.tree_leaves(graph.module(*few.args, **few.kwargs))
    return found


def _first_samples(graph: FloatGraph) -> Batch:
    return graph.smaller(Batch(*graph.example), COMPARED_SAMPLES)
