"""A calibration whose scales are those of another tool's file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qtool import observers
from qtool.algorithms.pipeline import SOLVE
from qtool.algorithms.registry import STEPS, select_steps
from qtool.calibration.calibration import Calibration
from qtool.core.conversion_options import DynamicSizes
from qtool.core.data import Batch, batches, to_tensor
from qtool.core.errors import CalibrationError, OptionError
from qtool.core.graph import FloatGraph
from qtool.core.quant_params import QuantParams
from qtool.core.random_inputs import random_inputs
from qtool.core.remedies import Argument, Omission, OtherFile
from qtool.core.summary import group_names
from qtool.core.types import Observed, ObserverSpec
from qtool.frontends.captured_model import Captured, capture_model
from qtool.frontends.onnx.onnx_module import OnnxModule
from qtool.planning.plan import QuantPlan
from qtool.planning.recipe import Recipe
from qtool.plugins.scales.file_names import file_names
from qtool.plugins.scales.known_scales import known_scales
from qtool.plugins.scales.readers import FileScales, read_scales

SAMPLES = 4  # random ones, of a conversion without calibration
_MIN_MAX = ObserverSpec("minmax")
_NO_DATA = (
    "there is no calibration: no step recovers accuracy, and SQNR is that of random inputs; check "
    "accuracy on real data"
)


def steps_with_scales(recipe: Recipe, has_samples: bool) -> Recipe:
    """Return a recipe with the steps that keep the ranges of tensors, those after the scales.

    Args:
        recipe: its steps, or the accuracy whose steps run.
        has_samples: whether there are samples; without, no step of an accuracy runs.

    Raises:
        OptionError: the recipe names a step that moves ranges between layers.
    """
    before = {s.name for s in STEPS[: STEPS.index(SOLVE)]}
    if recipe.recover is None:
        steps = select_steps(recipe) if has_samples else []
        names = (s.name for s in steps if s is not SOLVE and s.name not in before)
        return replace(recipe, recover=tuple(names))
    if moving := [name for name in recipe.recover if name in before]:
        kept = ",".join(name for name in recipe.recover if name not in before)
        raise OptionError(
            f"the step {moving[0]} changes the tensors that the scales of another tool are of",
            Argument("--recover", kept) if kept else Omission("--recover"),
        )
    return recipe


def with_scales(
    calibration: Calibration, model: Any, captured: Captured, plan: QuantPlan, path: str | Path
) -> Calibration:
    """Return a calibration with the scales of a file.

    Args:
        calibration: calibration of this model.
        model: the float ONNX file.
        captured: captured from it.
        plan: its plan, with the recipe of `steps_with_scales`.
        path: see `read_scales`.

    Raises:
        CalibrationError: the scales are of another model, or the model is no ONNX file.
        FileError: the file is not readable.
    """
    _check_model(model)
    graph, _ = captured.for_target(plan.target)
    stored = calibration.kept_samples.batches(SAMPLES, SAMPLES, holdout=None)
    batch = graph.call_of(stored[-1]) if stored else Batch(*graph.example)
    known = known_scales(read_scales(path), file_names(model, graph, batch), graph, plan)
    return replace(calibration, scales=known.params, notes=(*calibration.notes, *known.notes))


def calibration_of_scales(
    model: Any, path: str | Path, target: str, recipe: Recipe, dynamic: DynamicSizes | None
) -> tuple[Captured, QuantPlan, Calibration]:
    """Return the captured model, its plan and a calibration of the scales of a file alone.

    Args:
        model, path: as for `with_scales`.
        target: name of the target.
        recipe, dynamic: as for `qtool.convert`.

    Raises:
        CalibrationError: as for `with_scales`, or the file lacks a tensor that the plan quantizes.
    """
    _check_model(model)
    scales = read_scales(path)
    captured = capture_model(model, model.zero_batch(SAMPLES), dynamic)
    plan = captured.plan(target, _MIN_MAX, steps_with_scales(recipe, has_samples=False))
    graph, _ = captured.for_target(target)
    names = file_names(model, graph, _random_batch(graph, scales))
    known = known_scales(scales, names, graph, plan)
    observed = {p.name: p.spec for p in plan.observed()}
    if missing := [name for name in observed if name not in known.params]:
        raise CalibrationError(
            f"{path}: no scale that qtool can take for {len(missing)} of {len(observed)} tensors: "
            f"{group_names(missing)}",
            Argument("--calibration", text="give their ranges with {}"),
        )
    ranges = {name: _statistic(known.params[name]) for name in observed}
    calibration = Calibration(
        captured.fingerprint,
        target,
        plan.observer,
        plan.recipe,
        graph.inputs,
        0,
        {name: spec.observer for name, spec in observed.items() if isinstance(spec, Observed)},
        ranges,
        notes=(*captured.notes, *known.notes, _NO_DATA),
        scales=known.params,
    )
    return captured, plan, calibration


def _check_model(model: Any) -> None:
    if not isinstance(model, OnnxModule):
        raise CalibrationError(
            "scales of another tool have the names of tensors of an ONNX file",
            OtherFile("give the float .onnx file that the tool quantized as the model"),
        )


def _random_batch(graph: FloatGraph, scales: FileScales) -> Batch:
    """Return random samples in the ranges that the file has for the inputs."""
    ranges: dict[str, tuple[float, float]] = {}
    for each in scales.scales:
        if each.params.axis is None:
            params, scale = each.params, float(each.params.scale)
            low, high = params.qtype.qmin, params.qtype.qmax
            zero = int(params.zero_point)
            ranges |= dict.fromkeys(each.names, ((low - zero) * scale, (high - zero) * scale))
    inputs = {i.name: ranges.get(i.name, (0.0, 1.0)) for i in graph.inputs}
    arrays = random_inputs(graph.inputs, SAMPLES, np.random.default_rng(0), inputs)
    return graph.bind(next(batches([tuple(map(to_tensor, arrays))], graph.module)))


def _statistic(params: QuantParams) -> observers.Statistic:
    """Return the extremes of the codes, as if they were observed."""
    statistic = observers.create(_MIN_MAX, None)
    zero, scale = params.zero_point.double(), params.scale.double()
    ends = [(end - zero) * scale for end in (params.qtype.qmin, params.qtype.qmax)]
    statistic.update(torch.stack(ends).float())
    return statistic
