"""The Python API: calibrate, convert, quantize. Thin: one line of thought each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from qtool import graph as G
from qtool import observers, targets
from qtool.calibration import Calibration, observe
from qtool.capture import OnnxModule, capture_module, capture_onnx, from_program
from qtool.data import Batch, batches
from qtool.errors import CalibrationError, DataError
from qtool.graph import FloatGraph, Input
from qtool.graph.fingerprint import fingerprint
from qtool.passes import CANONICAL, FOR_TARGETS, GraphPass, run_passes, same_function
from qtool.plan import Kind, QuantPlan, Rewrite, make_plan
from qtool.points import insert_points
from qtool.quantized import QuantizedModel
from qtool.recipe import Recipe
from qtool.recovery.smoothing import REASON as SMOOTHING
from qtool.recovery.smoothing import Factors, find_factors, smooth, smooth_ranges
from qtool.recovery.solve import solve_parameters
from qtool.types import UINT8, Dynamic, Observed, ObserverSpec

__all__ = ["DEFAULT_OBSERVER", "Captured", "calibrate", "capture_model", "convert", "quantize"]

DEFAULT_OBSERVER = "percentile"
VERIFIED_SAMPLES = 64
_AS_CALIBRATED = ObserverSpec("as calibrated")

Model = nn.Module | ExportedProgram
DynamicSizes = Mapping[str, Mapping[int, str]]
Progress = Callable[[Iterable[Any]], Iterable[Any]]


class Captured:
    """A model captured and brought to canonical form, ready to be planned.

    Give it to `calibrate` and `convert` instead of the model to capture only once.
    """

    def __init__(self, graph: FloatGraph, fingerprint: str) -> None:
        self.graph = graph
        self.fingerprint = fingerprint
        self._prepared: dict[str, tuple[FloatGraph, tuple[Rewrite, ...]]] = {}

    def for_target(self, name: str) -> tuple[FloatGraph, tuple[Rewrite, ...]]:
        """The graph in the forms that a target is quick with, and what was rewritten."""
        if name not in self._prepared:
            passes = [FOR_TARGETS[p] for p in targets.target(name).rewrites]
            graph = replace(self.graph, module=G.clone(self.graph.module))
            counts = _rewrite(graph, passes)
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
    ) -> QuantPlan:
        """What would be quantized for a target; prints as a table. Arguments as for `quantize`."""
        spec = observers.parse(observer) if isinstance(observer, str) else observer
        if spec is not _AS_CALIBRATED:
            spec = ObserverSpec(spec.name, tuple(observers.options_of(spec).items()))
        graph, rewrites = self.for_target(target)
        found = make_plan(graph.graph, targets.target(target), spec, Recipe.of(recipe, mode))
        return replace(found, rewrites=rewrites)

    def smoothed(
        self, plan: QuantPlan, factors: Factors, recipe: Any = None
    ) -> tuple[FloatGraph, QuantPlan, Mapping[str, str]]:
        """The graph of a plan's target with wide channels moved into weights, planned anew.

        Args:
            plan: made by `plan` with the same recipe; the new one observes nothing by itself.
            factors: see qtool/recovery/smoothing.py.

        Returns:
            The graph, its plan, and what each of the smooth tensors is called in it.
        """
        graph, _ = self.for_target(plan.target)
        if not factors:
            return graph, plan.without_channels(), {}
        made: dict[str, str] = {}

        def rewrite(module: fx.GraphModule) -> int:
            made.update(smooth(module, plan, factors))
            return len(made)

        graph = replace(graph, module=G.clone(graph.module))
        _rewrite(graph, [GraphPass("smooth", rewrite)])
        chosen = targets.target(plan.target)
        again = make_plan(graph.graph, chosen, _AS_CALIBRATED, Recipe.of(recipe))
        done = Rewrite("smooth", len(made), SMOOTHING)
        again = replace(again, rewrites=(*plan.rewrites, done))
        return graph, again.without_channels(), made


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
        return model
    if isinstance(model, ExportedProgram):
        graph = from_program(model)
    elif example is None:
        raise DataError("there is no batch to capture the model with; give at least one")
    elif isinstance(model, OnnxModule):
        graph = capture_onnx(model, next(batches([example], model)), dynamic)
    else:
        graph = capture_module(model, next(batches([example], model)), dynamic)
    mark = fingerprint(graph.module)
    _rewrite(graph, CANONICAL)
    return Captured(graph, mark)


def calibrate(
    model: Model | Captured,
    data: Iterable[Any],
    *,
    target: str = targets.DEFAULT,
    observer: str = DEFAULT_OBSERVER,
    recipe: Any = None,
    mode: str | None = None,
    dynamic: DynamicSizes | None = None,
    progress: Progress = lambda x: x,
) -> Calibration:
    """Observes a model's tensors on data.

    Args:
        model: an nn.Module in eval mode, an ExportedProgram, or what `capture_model` returned.
        data: any iterable of batches: a DataLoader, a list of tensors, tuples or dicts. Of a tuple
            longer than the model's arguments the first are used, so (images, labels) works.
        target: whose plan says which tensors to observe.
        observer: "minmax", "moving_average", "percentile", "mse"; options as "percentile:99.99".
        recipe: what is different for parts of the model: a Recipe, the path of a .toml or .json
            file, or a list of rules such as {"select": "classifier.*", "as": "float"}.
        mode: "static", "dynamic", "weight-only" or "weight-only-int4": how everything is quantized
            that no rule of the recipe speaks of.
        dynamic: see `capture_model`.
        progress: wraps the iterable of batches, for a progress bar.

    Raises:
        DataError: no data, NaN or Inf, or shapes and dtypes that do not fit.
        PlanError: the recipe does not fit the model. CalibrationError: nothing is to be calibrated.
    """
    first, data = _peek(data, model)
    captured = capture_model(model, first, dynamic)
    plan = captured.plan(target, observer, recipe, mode)
    if not plan.observed():
        raise CalibrationError(
            "there is nothing to calibrate: no tensor of this plan has a fixed range; call "
            "quantize, which takes one batch then"
        )
    graph, _ = captured.for_target(target)
    static = tuple(p for p in plan if not isinstance(p.spec, Dynamic))  # the float model is seen
    prepared = insert_points(graph.module, replace(plan, points=static))
    return observe(graph, prepared, plan, data, captured.fingerprint, progress)


def convert(
    model: Model | Captured,
    calibration: Calibration | str | Path,
    *,
    target: str | None = None,
    recipe: Any = None,
    mode: str | None = None,
    dynamic: DynamicSizes | None = None,
    sample: Any = None,
) -> QuantizedModel:
    """The quantized model, from a model and its calibration.

    Args:
        model: the model that was calibrated.
        calibration: what `calibrate` returned, or the path of a saved one.
        target: by default the target that the calibration was made for.
        recipe, mode: as for `calibrate`. They may leave more in float than the calibration did,
            but not less: what it did not see has no range.
        dynamic: see `capture_model`; by default as when it was calibrated.
        sample: a batch to verify exports with; by default random values in the calibrated range.

    Raises:
        CalibrationError: the calibration is of another model or target, or made with a recipe that
            does not fit this one. PlanError: the recipe does not fit the model.
    """
    if not isinstance(calibration, Calibration):
        calibration = Calibration.load(calibration)
    example = Batch((), _random_inputs(calibration)) if sample is None else sample
    try:
        captured = capture_model(model, example, dynamic or _dynamic_of(calibration.inputs))
    except DataError as error:
        takes = "; ".join(map(str, calibration.inputs))
        raise CalibrationError(
            f"the calibration was made with another model, one that takes {takes}; "
            f"calibrate this model first ({error})"
        ) from error
    if captured.fingerprint != calibration.fingerprint:
        raise CalibrationError(
            "the calibration was made with another model, or with other weights; "
            "calibrate this model first"
        )
    recipe = Recipe.of(recipe, mode)
    plan = captured.plan(target or calibration.target, _AS_CALIBRATED, recipe)
    return _quantized(captured, plan, calibration, example, recipe)


def quantize(
    model: Model | Captured,
    data: Iterable[Any],
    *,
    target: str = targets.DEFAULT,
    observer: str = DEFAULT_OBSERVER,
    recipe: Any = None,
    mode: str | None = None,
    dynamic: DynamicSizes | None = None,
    progress: Progress = lambda x: x,
) -> QuantizedModel:
    """calibrate and convert in one step; see there for arguments and errors.

    Where calibration has nothing to watch (mode "weight-only") only the first batch is used, to
    capture and to verify with. Mode "dynamic" watches channels for smoothing; one batch is enough.
    """
    first, data = _peek(data, model)
    captured = capture_model(model, first, dynamic)
    recipe = Recipe.of(recipe, mode)
    plan = captured.plan(target, observer, recipe)
    if plan.observed():
        calibration = calibrate(
            captured, data, target=target, observer=observer, recipe=recipe, progress=progress
        )
    else:
        inputs = captured.graph.inputs
        calibration = Calibration(captured.fingerprint, target, inputs, 0, {}, {})
    return _quantized(captured, plan, calibration, first, recipe)


def _quantized(
    captured: Captured, plan: QuantPlan, calibration: Calibration, example: Any, recipe: Recipe
) -> QuantizedModel:
    graph, _ = captured.for_target(plan.target)
    factors = find_factors(graph.module, plan, calibration)
    graph, again, made = captured.smoothed(plan, factors, recipe)
    calibration = smooth_ranges(calibration, factors, made)
    plan = _observed_with(again, calibration)
    parameters = solve_parameters(graph.module, plan, calibration)
    batch = graph.bind(next(batches([example], graph.module)))
    return QuantizedModel(graph, plan, parameters, _head(batch), captured.graph, factors)


def _observed_with(plan: QuantPlan, calibration: Calibration) -> QuantPlan:
    """The plan with the observers of the calibration, which must be those the recipe names."""
    points = []
    for point in plan:
        spec, seen = point.spec, calibration.specs.get(point.name)
        if point.kind is Kind.ACTIVATION and isinstance(spec, Observed) and seen is not None:
            if spec.observer not in (_AS_CALIBRATED, seen):
                raise CalibrationError(
                    f"the recipe observes '{point.name}' with {spec.observer}, the calibration was "
                    f"made with {seen}; calibrate again with this recipe"
                )
            point = replace(point, spec=replace(spec, observer=seen))
        points.append(point)
    return replace(plan, points=tuple(points))


def _rewrite(graph: FloatGraph, passes: Sequence[GraphPass]) -> dict[str, int]:
    """Runs passes in place, and shows on the example that the graph computes what it did."""
    args, kwargs = graph.example
    with torch.no_grad():
        before = pytree.tree_leaves(graph.module(*args, **kwargs))
        counts = run_passes(graph.module, passes)
        same_function(before, pytree.tree_leaves(graph.module(*args, **kwargs)))
    return counts


def _peek(data: Iterable[Any], model: Model | Captured) -> tuple[Any, Iterable[Any]]:
    """The first batch, and data that still begins with it. One-shot iterators are fine."""
    module = model if isinstance(model, nn.Module) else None
    if isinstance(model, Captured):
        module = model.graph.module
    stream = batches(data, module)
    first = next(stream, None)
    if first is None:
        raise DataError("the calibration data is empty; give at least one batch")
    first.check_finite(0)
    return first, itertools.chain([first], stream)


def _head(batch: Batch) -> Batch:
    """At most VERIFIED_SAMPLES samples of a batch."""

    def cut(x: Any) -> Any:
        return x[:VERIFIED_SAMPLES] if isinstance(x, torch.Tensor) and x.dim() else x

    return Batch(*pytree.tree_map(cut, (batch.args, batch.kwargs)))


def _dynamic_of(inputs: tuple[Input, ...]) -> DynamicSizes:
    """The dynamic dimensions of inputs as they were captured."""
    return {
        i.name: {axis: size for axis, size in enumerate(i.shape) if isinstance(size, str)}
        for i in inputs
    }


def _random_inputs(calibration: Calibration) -> dict[str, torch.Tensor]:
    """Reproducible inputs in the calibrated ranges; a dynamic dimension has size 4."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, torch.Tensor] = {}
    for each in calibration.inputs:
        shape = [4 if isinstance(s, str) else s for s in each.shape]
        dtype = getattr(torch, each.dtype)
        low, high = 0.0, 1.0
        if (statistic := calibration.statistics.get(each.name)) is not None:
            bounds = observers.range_of(calibration.specs[each.name], statistic, UINT8, False)
            low, high = (float(b) for b in bounds)
        values = torch.rand(shape, generator=generator) * (high - low) + low
        found[each.name] = values.to(dtype)
    return found
