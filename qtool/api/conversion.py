"""The Python API of the conversion: calibrate, convert, quantize."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.pipeline import collect_probes, run_steps
from qtool.algorithms.registry import samples_to_keep, select_steps
from qtool.api.conversion_inputs import (
    capture_data,
    capture_notes,
    dynamic_sizes,
    example_batch,
)
from qtool.api.quantized_model import QuantizedModel
from qtool.backends.formats import format_of
from qtool.calibration.calibration import Calibration
from qtool.calibration.collect import collect_statistics
from qtool.calibration.data_warnings import missing_normalisation
from qtool.core import plugins
from qtool.core.conversion_options import ConvertKeywords, QuantizeKeywords, QuantizeOptions
from qtool.core.data import batches
from qtool.core.errors import CalibrationError, CaptureError, DataError
from qtool.core.graph.devices import float32_convolutions
from qtool.core.graph.edit import exclusive
from qtool.core.log import log_warning
from qtool.core.memory import relaxed_gc, return_free_memory
from qtool.core.option_records import keywords_of
from qtool.core.progress import no_progress
from qtool.core.remedies import CallEdit, OtherFile
from qtool.core.types import Observed, Progress
from qtool.distributed import collective, current, share_steps
from qtool.frontends.captured_model import Captured, Model, capture_model
from qtool.frontends.coded_linear import check_unchanged
from qtool.frontends.torch.example_inputs import UnknownInputError, is_run_error
from qtool.planning import targets
from qtool.planning.default_mode import mode_notes
from qtool.planning.plan import Probe, QuantPlan
from qtool.planning.recipe import Recipe

if TYPE_CHECKING:
    from typing_extensions import Unpack

VERIFIED_SAMPLES = 64


@collective
@torch.inference_mode(False)
@keywords_of(QuantizeOptions)
def calibrate(
    model: Model | Captured,
    data: Iterable[Any] | None,
    *,
    samples: int | None = None,
    progress: Progress = no_progress,
    format: str | None = None,  # noqa: A002  # the field's word
    **keywords: Unpack[QuantizeKeywords],
) -> Calibration:
    """Observe the ranges of a model's tensors on data.

    In a process group of torch.distributed all ranks call it, each with its share of the data,
    which may be empty; all get the statistics of all data.

    Args:
        model, data, samples, progress, format: as for `quantize`.
        keywords: as for `quantize`. The plan of the target selects the tensors to observe, and
            samples are stored that the steps of the accuracy level need.

    Raises:
        DataError: no data, NaN or Inf, or shapes and dtypes that do not fit.
        PlanError: the recipe does not fit the model.
        CalibrationError: the plan needs no calibration.
        ExportError: a file of this format cannot hold an operator.
        RanksError: the ranks have different arguments, or one of them failed.

    Example:
        >>> qtool.calibrate(model, loader).save("model.calib")
    """
    how = QuantizeOptions(**keywords)
    target = targets.DEFAULT if how.target is None else how.target
    plain = Recipe.of(*how.rules)
    captured, _, data = capture_data(model, data, how.dynamic, samples)
    plan = captured.plan(target, how.observer, captured.recipe(target, *how.rules))
    _check_format(captured, target, format)
    calibration = _collect(captured, plan, data, progress)
    if calibration is None:
        raise CalibrationError(
            "there is nothing to calibrate: no tensor of this plan has a fixed range",
            CallEdit("use `qtool quantize` (in Python qtool.quantize), which needs one batch only"),
        )
    notes = (*capture_notes(captured, model, data, how.dynamic), *calibration.notes)
    return replace(calibration, notes=(*_mode_notes(plan, plain), *notes))


@keywords_of(QuantizeOptions, "observer")
def convert(
    model: Model | Captured,
    calibration: Calibration | str | Path | None = None,
    *,
    scales: str | Path | None = None,
    sample: Any = None,
    **keywords: Unpack[ConvertKeywords],
) -> QuantizedModel:
    """Convert a calibrated model to a quantized one.

    Args:
        model: the model that was calibrated.
        calibration: the result of `calibrate`, or the path of a saved one; None with `scales`.
        scales: a file of another tool whose scales replace those of the calibration: a QDQ file of
            this model, which is a float ONNX file, or encodings of AIMET. Steps that change tensors
            before the scales do not run; without a calibration none does.
        sample: a batch to verify exports with; by default samples that the calibration stores, or
                random values in its ranges.
        keywords: as for `quantize`; by default target, recipe and dynamic sizes of the calibration.
            They may leave more in float than the calibration did, but not less: tensors that were
            not observed have no range.

    Raises:
        CalibrationError: the calibration is of another model or target, or its recipe does not fit
            this one.
        PlanError: the recipe does not fit the model.
    """
    how = QuantizeOptions(**keywords)
    target, dynamic = how.target, how.dynamic
    if calibration is None:
        if scales is None:
            raise CalibrationError("give a calibration, a file of scales, or both")
        of_scales: Calibration
        captured, plan, of_scales = plugins.function("calibration_of_scales")(
            model,
            scales,
            targets.target(target or targets.DEFAULT).name,
            Recipe.of(*how.rules),
            dynamic,
        )
        return _convert(captured, plan, of_scales, example_batch(of_scales, model))
    if not isinstance(calibration, Calibration | str | Path):
        raise CalibrationError(
            f"the calibration is a {type(calibration).__name__}",
            CallEdit("give what qtool.calibrate returned, or qtool.quantize(model, data)"),
        )
    if not isinstance(calibration, Calibration):
        calibration = Calibration.load(calibration)
    calibration.check_target(targets.target(target or calibration.target).name)
    example = example_batch(calibration, model) if sample is None else sample
    try:
        captured = capture_model(model, example, dynamic or dynamic_sizes(calibration, model))
    except (DataError, CaptureError) as error:
        of_calibration = isinstance(error, UnknownInputError) and dynamic is None
        if isinstance(error, CaptureError) and not (is_run_error(error) or of_calibration):
            raise
        takes = "; ".join(map(str, calibration.inputs))
        raise CalibrationError(
            f"the calibration was made with another model, one that takes {takes}"
            f"{'' if of_calibration else f' ({error})'}",
            OtherFile("calibrate this model first"),
        ) from error
    if captured.fingerprint != calibration.fingerprint:
        raise CalibrationError(
            "the calibration was made with another model, or with other weights",
            OtherFile("calibrate this model first"),
        )
    name = target or calibration.target
    chosen = calibration.recipe
    if how.rules != (None,) * 5:
        chosen = captured.recipe(name, *how.rules)
    if scales is not None:
        chosen = plugins.function("steps_with_scales")(chosen, has_samples=True)
    plan = captured.plan(name, calibration.observer, chosen, seen=calibration.specs)
    if scales is not None:
        with_scales: Callable[..., Calibration] = plugins.function("with_scales")
        calibration = with_scales(calibration, model, captured, plan, scales)
    return _convert(captured, plan, calibration, example)


@collective
@torch.inference_mode(False)
@keywords_of(QuantizeOptions)
def quantize(
    model: Model | Captured,
    data: Iterable[Any] | None,
    *,
    samples: int | None = None,
    progress: Progress = no_progress,
    format: str | None = None,  # noqa: A002  # the field's word
    **keywords: Unpack[QuantizeKeywords],
) -> QuantizedModel:
    """Quantize a trained model: calibrate it on data, recover accuracy, return the int8 model.

    Where nothing is calibrated (mode "weight-only" with accuracy "fast") only the first batch is
    used, for capture and verification, and without data random inputs. Mode "dynamic" observes
    channels for SmoothQuant. The ranks of a process group calibrate and convert together, and all
    get the same model.

    Args:
        model: an nn.Module in eval mode, an ExportedProgram, or the result of `capture_model`.
        data: any iterable of batches: a DataLoader, a list of tensors, tuples or dicts. The first
            elements of a tuple longer than the model's arguments are used, so (images, labels)
            works. None: inputs are distilled from the statistics of the model's BatchNorms, which
            needs known input sizes: the result of `capture_model`, an ExportedProgram or an ONNX
            model.
        samples: use the first ones of the data only, this many; by default all.
        progress: wraps the iterable of batches, for a progress bar.
        format: file format that the model is for, as for `QuantizedModel.export` or "tflite":
            operators that it cannot hold are refused before the calibration.
        keywords: the fields of `QuantizeOptions`, which explains them: target, observer, recipe,
            mode, accuracy, recover, ignore and dynamic.

    Returns:
        The quantized model: call it like the float model, `export` it, or train it.

    Raises:
        DataError: no data, NaN or Inf, or shapes and dtypes that do not fit.
        CaptureError: the model cannot be captured.
        PlanError: the recipe does not fit the model.
        ExportError: a file of this format cannot hold an operator.
        RanksError: the ranks have different arguments, or one of them failed.

    Example:
        >>> recipe = qtool.Recipe(rules=(qtool.Rule(op="linear", observer="minmax"),))
        >>> print(qtool.quantize(model, loader, recipe=recipe).export("model.int8.onnx"))
    """
    how = QuantizeOptions(**keywords)
    target = targets.DEFAULT if how.target is None else how.target
    plain = Recipe.of(*how.rules)

    def plan_of(captured: Captured) -> QuantPlan:
        return captured.plan(target, how.observer, captured.recipe(target, *how.rules))

    captured, first, data = capture_data(
        model, data, how.dynamic, samples, lambda c: _is_calibrated(c, plan_of(c))
    )
    plan = plan_of(captured)
    _check_format(captured, target, format)
    calibration = _collect(captured, plan, data, progress)
    if calibration is None:
        graph, _ = captured.for_target(target)
        calibration = Calibration(
            captured.fingerprint, target, plan.observer, plan.recipe, graph.inputs, 0, {}, {}
        )
    notes = (*capture_notes(captured, model, data, how.dynamic), *calibration.notes)
    modes = () if captured.codes else _mode_notes(plan, plain)
    calibration = replace(
        calibration, notes=(*modes, *notes), scales=captured.params_of_codes(plan)
    )
    return _convert(captured, plan, calibration, first, shared=True)


def _mode_notes(plan: QuantPlan, plain: Recipe) -> tuple[str, ...]:
    return mode_notes(plan.recipe, plain, targets.target(plan.target))


def _check_format(captured: Captured, target: str, name: str | None) -> None:
    """Check before the calibration that files of a format can hold the graph; None: any format."""
    if name is not None:
        targets.check_format(target, name)
        format_of(name).check_graph(captured.for_target(target)[0])


def _collect(
    captured: Captured, plan: QuantPlan, data: Iterable[Any], progress: Progress
) -> Calibration | None:
    """Return the statistics and samples that a plan and its steps need; None if they need none."""
    if not _is_calibrated(captured, plan):
        return None
    probes, count = probes_of_steps(captured, plan), samples_to_keep(plan)
    graph, _ = captured.for_target(plan.target)
    calibration = collect_statistics(
        graph, plan, probes, data, captured.fingerprint, progress, count
    )
    return_free_memory()  # batches of large images leave gigabytes of free memory
    trained = captured.unfolded and missing_normalisation(
        captured.unfolded, calibration.kept_samples
    )
    if trained:
        log_warning(trained)
        calibration = replace(calibration, notes=(trained, *calibration.notes))
    return calibration


def _is_calibrated(captured: Captured, plan: QuantPlan) -> bool:
    """Return whether a plan or its steps need statistics or samples."""
    return bool(plan.observed() or probes_of_steps(captured, plan) or samples_to_keep(plan))


def probes_of_steps(captured: Captured, plan: QuantPlan) -> tuple[Probe, ...]:
    """Return the probes of the steps in a plan's recipe."""
    graph, _ = captured.for_target(plan.target)
    return collect_probes(select_steps(plan.recipe), graph.graph, plan)


@exclusive
@relaxed_gc()  # around all steps: their temporary objects are short-lived
def _convert(
    captured: Captured,
    plan: QuantPlan,
    calibration: Calibration,
    example: Any,
    shared: bool = False,
) -> QuantizedModel:
    """Run the steps of the recipe. shared: whether all ranks share the work."""
    _check_observers(plan, calibration)
    sharing = share_steps() if shared else nullcontext()
    with sharing, float32_convolutions(captured.graph.device):
        state = run_steps(
            select_steps(plan.recipe), ConversionState.start(captured, plan, calibration)
        )
    if captured.codes:
        assert state.parameters is not None
        check_unchanged(calibration.scales, state.parameters.params, plan.target)
    if shared:
        current().continue_on_rank_zero()
    return_free_memory()
    batch = state.graph.bind(next(batches([example], state.graph.module)))
    return QuantizedModel(state, state.graph.smaller(batch, VERIFIED_SAMPLES))


def _check_observers(plan: QuantPlan, calibration: Calibration) -> None:
    """Check that the recipe's observers are those of the calibration."""
    for point in plan.observed():
        assert isinstance(point.spec, Observed)
        calibrated = calibration.specs.get(point.name)
        if calibrated is not None and calibrated != point.spec.observer:
            raise CalibrationError(
                f"the recipe observes '{point.name}' with {point.spec.observer}, the calibration "
                f"was made with {calibrated}",
                OtherFile("calibrate again with this recipe"),
            )
