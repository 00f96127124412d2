"""A model captured and brought to canonical form, ready to be planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from qtool import observers
from qtool.backends.formats import write_float
from qtool.core import graph as G
from qtool.core.argument_names import argument
from qtool.core.conversion_options import DynamicSizes
from qtool.core.data import Batch, batches
from qtool.core.data.noise_inputs import NOISE, Noise
from qtool.core.errors import CalibrationError, CaptureError, DataError
from qtool.core.graph import FloatGraph
from qtool.core.graph.batch_norms import are_untrained, batch_norms
from qtool.core.graph.deferred import outputs_of
from qtool.core.graph.edit import exclusive
from qtool.core.graph.fingerprint import fingerprint
from qtool.core.graph.finite_outputs import check_outputs, check_weights
from qtool.core.graph.float_graph import MIN_SAMPLES
from qtool.core.graph.float_tolerance import COMPARED_SAMPLES, float_tolerance
from qtool.core.in_process import InProcess
from qtool.core.log import log_warning
from qtool.core.memory import relaxed_gc, return_free_memory
from qtool.core.on_use import OnUse
from qtool.core.option_names import DEFAULT_OBSERVER
from qtool.core.progress import track_task
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import CallEdit, DataEdit, ModelEdit
from qtool.core.types import ObserverSpec
from qtool.core.user_code import uncompiled
from qtool.frontends import coded_linear
from qtool.frontends.fixed_dimensions import fix_dimensions
from qtool.frontends.huggingface.returned_cache import without_cache
from qtool.frontends.not_a_model import no_model
from qtool.frontends.own_models import FileNetwork
from qtool.frontends.to_float32 import note_on_data, to_float32
from qtool.frontends.torch.example_inputs import (
    FixedSizeError,
    SuggestedSizes,
    VaryingSizes,
    check_dynamic,
)
from qtool.frontends.torch.export_module import capture_module
from qtool.frontends.torch.exported_program import from_program
from qtool.frontends.torch.input_remedies import check_samples
from qtool.frontends.torch.shape_decisions import run_model
from qtool.passes import CANONICAL, FOR_TARGETS, GraphPass, run_passes, same_function
from qtool.planning import targets
from qtool.planning.default_mode import recipe_for
from qtool.planning.plan import QuantPlan, Rewrite
from qtool.planning.planner import make_plan
from qtool.planning.recipe import Recipe

_capture_onnx = OnUse("qtool.frontends.onnx.onnx_file:capture_onnx")

Model = nn.Module | ExportedProgram


class Captured(InProcess):
    """A model captured in canonical form, ready to be planned.

    Pass it to `calibrate` and `convert` instead of the model to capture only once.

    Attributes:
        graph: the float graph after the canonical passes.
        unfolded: the graph before them, with its BatchNorms; None without any.
        fingerprint: fingerprint of the captured graph.
        notes: what was converted before the capture, in sentences.
        file: the ONNX file that it was read from; None for a model of torch.
        file_bytes: size of the ONNX file that was captured, with its external data; 0 for other
            models.
        codes: parameter -> codes that a quantized checkpoint has for it.
    """

    instead = "send the model, and capture it there"

    def __init__(
        self,
        graph: FloatGraph,
        fingerprint: str,
        outputs: Sequence[torch.Tensor] | None = None,
        unfolded: FloatGraph | None = None,
        notes: tuple[str, ...] = (),
        file: Path | None = None,
        file_bytes: int = 0,
        codes: Mapping[str, coded_linear.WeightCodes] | None = None,
    ) -> None:
        """
        Args:
            outputs: outputs of the graph on its example, if known.
            graph, fingerprint, unfolded, notes, file, file_bytes, codes: as the attributes.
        """
        self.graph = graph
        self.unfolded = unfolded
        self.fingerprint = fingerprint
        self.notes = notes
        self.file = file
        self.file_bytes = file_bytes
        self.codes = codes or {}
        self._outputs = outputs
        self._prepared: dict[str, tuple[FloatGraph, tuple[Rewrite, ...]]] = {}
        self._versions = _versions(graph.module)

    def __repr__(self) -> str:
        operators = sum(node.op == "call_function" for node in self.graph.graph.nodes)
        inputs = "; ".join(map(str, self.graph.inputs))
        return f"<Captured: {operators} operators; {inputs}; `plan()` says how they run>"

    def check_unchanged(self) -> None:
        """Check that the weights, which belong to the user's model, have not changed.

        Raises:
            CaptureError: they have.
        """
        if self._versions != _versions(self.graph.module):
            raise CaptureError(
                "the model's weights have changed since it was captured",
                ModelEdit("capture it again"),
            )

    def check_outputs(self) -> None:
        """Check that the outputs on the example are finite, if they are known.

        Raises:
            DataError: they are not; names the first module whose output is not.
        """
        if self._outputs is not None:
            check_outputs(self.graph, _first_samples(self.graph), self._outputs, 0)

    @exclusive
    def for_target(self, name: str) -> tuple[FloatGraph, tuple[Rewrite, ...]]:
        """Return the graph after the passes of a target, and the rewrites they made."""
        rewrites = targets.target(name).rewrites
        if name not in self._prepared:
            passes = [FOR_TARGETS[p] for p in rewrites]
            graph = replace(self.graph, module=G.clone(self.graph.module))
            before = self._outputs or example_outputs(self.graph)
            self._outputs = None  # may be large, and are rarely needed again
            reasons = {p.name: p.reason_for(graph.module) for p in passes}
            counts, _ = apply_passes(graph, passes, before)
            applied = tuple(Rewrite(n, counts[n], why) for n, why in reasons.items() if counts[n])
            self._prepared[name] = (graph, applied)
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
        """Return the quantization plan for a target; it prints as a table.

        Args:
            target, observer, recipe, mode: as for `quantize`.
            seen: observers of tensors that have statistics already; see `make_plan`.
            layers: nodes of a part of a model; see `make_plan`.
        """
        if not isinstance(observer, str | ObserverSpec):
            raise CalibrationError(f"observer is {observer!r}", CallEdit("give one by name"))
        spec = observers.parse(observer) if isinstance(observer, str) else observer
        spec = ObserverSpec(spec.name, tuple(observers.options_of(spec).items()))
        graph, rewrites = self.for_target(target)
        if self.codes and recipe is None:
            recipe, mode = self.recipe(target, None, mode), None
        chosen = recipe_for(graph.graph, targets.target(target), recipe, mode)
        plan = make_plan(graph.graph, targets.target(target), spec, chosen, seen, layers)
        self.params_of_codes(plan)
        return replace(plan, rewrites=rewrites)

    def params_of_codes(self, plan: QuantPlan) -> Mapping[str, QuantParams]:
        """Return point -> parameters of a checkpoint; PlanError: the plan changes its codes."""
        graph, _ = self.for_target(plan.target)
        return coded_linear.params_of_codes(self.codes, graph.graph, plan)

    def recipe(self, target: str, *options: Any) -> Recipe:
        """Return the recipe for a target, of options as `Recipe.of` takes them; where these set no
        mode it is the usual one of the model on the target."""
        graph, _ = self.for_target(target)
        if self.codes:
            return coded_linear.recipe_of_codes(self.codes, graph.graph, *options)
        return recipe_for(graph.graph, targets.target(target), *options)

    def export_float(self, path: str | Path, target: str = targets.DEFAULT) -> Path:
        """Write the float model, and return the path.

        Args:
            path: path of an ONNX file, in a target's operator set; or of a .tflite file.
            target: its name.

        Raises:
            ExportError: an operator cannot be written. FileError: the file cannot be written.
        """
        return write_float(self.graph, path, target)


@exclusive
@relaxed_gc()  # also around the import of what traces
def capture_model(
    model: Model | Captured, example: Any = None, dynamic: DynamicSizes | None = None
) -> Captured:
    """Capture a model and rewrite it into canonical form.

    Args:
        model: an nn.Module in eval mode, or an ExportedProgram.
        example: one batch of inputs (tensor, tuple or dict); not needed for an ExportedProgram.
        dynamic: input name -> {dimension: name}; by default dimension 0 of every input, "batch".

    Raises:
        CaptureError: the model cannot be captured; names the place and a remedy.
        DataError: its weights hold NaN or Inf.
    """
    model = uncompiled(model)
    if isinstance(model, Captured):
        model.check_unchanged()
        return model
    _check_torch_defaults()
    check_dynamic(dynamic)
    if isinstance(model, nn.Module | ExportedProgram):
        check_weights(model)
    eager = torch.compiler.set_stance("force_eager")  # parts may be compiled
    with track_task("capturing the model"), eager:
        return _capture(model, example, dynamic)


_LOSS = (
    "the model returns one number for all samples, as a loss is: a file for predictions needs the "
    "model that returns them"
)


def _capture(model: Model, example: Any, dynamic: DynamicSizes | None) -> Captured:
    notes: tuple[str, ...] = ()
    codes = coded_linear.codes_of(model) if isinstance(model, nn.Module) else {}
    if isinstance(model, ExportedProgram):
        graph = from_program(model)
    elif example is None:
        raise DataError(
            "there is no batch to capture the model with", DataEdit("give at least one")
        )
    elif isinstance(model, FileNetwork):
        batch = next(batches([example], model))
        graph = _capture_onnx(model, batch, dynamic)
        data_notes = note_on_data(batch, model.in_float32(batch))
        notes = (*model.notes, *data_notes, *model.notes_on_float())
    elif isinstance(model, nn.Module):
        model, batch, notes = to_float32(model, next(batches([example], model)))
        if dynamic is None:
            check_samples(model, batch)
        with without_cache(model, batch) as cache_notes:
            graph, size_notes = _with_suggested_sizes(model, batch, dynamic)
            graph = fix_dimensions(
                graph, partial(run_model, model), partial(capture_module, model, batch)
            )
        notes += (*cache_notes, *size_notes)
    else:
        raise no_model(model)
    for node in G.placeholders(graph.graph)[:1]:
        node.meta[NOISE] = Noise.of(model)
    mark = fingerprint(graph.module)
    norms = batch_norms(graph.module)
    if are_untrained(graph.module, norms):
        layers = "the BatchNorm layer" if len(norms) == 1 else f"all {len(norms)} BatchNorm layers"
        log_warning(
            f"the statistics of {layers} are those of initialisation (mean 0, "
            "variance 1): the network looks untrained; check that its weights are "
            f"loaded ({argument('--weights')})"
        )
    unfolded = replace(graph, module=G.clone(graph.module)) if norms else None
    _, outputs = apply_passes(graph, CANONICAL, example_outputs(graph))
    if not any(output.dim() for output in outputs):
        notes += (_LOSS,)
    notes += coded_linear.notes_on_codes(codes)
    source = (model.path, model.file_bytes) if isinstance(model, FileNetwork) else (None, 0)
    return_free_memory()
    return Captured(graph, mark, outputs, unfolded, notes, *source, codes)


def _with_suggested_sizes(
    model: nn.Module, batch: Batch, dynamic: DynamicSizes | None
) -> tuple[FloatGraph, tuple[str, ...]]:
    """Capture a module; dimensions that the data suggested and the model fixes are fixed.

    Returns:
        The graph, and a note on each of these dimensions.

    Raises:
        CaptureError: the model cannot be captured.
    """
    fixed: tuple[str, ...] = ()
    try:
        graph = capture_module(model, batch, dynamic)
    except FixedSizeError as error:
        name, axis = error.name, error.axis
        if not isinstance(dynamic, SuggestedSizes) or not dynamic.has(name, axis):
            raise
        if not isinstance(dynamic, VaryingSizes):  # else batches of another size are refused
            only = f"is fixed to {error.size}, the only size that the model takes"
            pad = f"pad to it ({argument('--max-length')} with {argument('--pad-to-max-length')})"
            fixed = (f"dimension {axis} of input '{name}' {only}; {pad}",)
    else:
        doubled = {i.shape[0] for i in graph.inputs if i.shape} == {MIN_SAMPLES}
        if dynamic is None and batch.size == 1 and doubled:
            graph = capture_module(model, batch, {})  # it computes with its number of samples
        return graph, ()
    graph, notes = _with_suggested_sizes(model, batch, dynamic.without(name, axis))
    return graph, (*fixed, *notes)


def _check_torch_defaults() -> None:
    """Check torch's default dtype and device, with which tensors of numbers are created."""
    if torch.get_default_dtype() not in (torch.float32, torch.float64):
        raise CaptureError(
            f"torch's default dtype is {torch.get_default_dtype()}, in which qtool cannot compute",
            ModelEdit("call torch.set_default_dtype(torch.float32) before it"),
        )
    if torch.get_default_device().type == "meta":
        raise CaptureError(
            "torch's default device is 'meta', which has no values",
            ModelEdit("leave its context first"),
        )


def _versions(module: nn.Module) -> list[tuple[int, int]]:
    """Return address and version (number of in-place writes) of each tensor."""
    tensors = module.state_dict(keep_vars=True).values()
    return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]


def apply_passes(
    graph: FloatGraph, passes: Sequence[GraphPass], before: Sequence[torch.Tensor]
) -> tuple[dict[str, int], Sequence[torch.Tensor]]:
    """Run passes in place, and check on the example that the outputs stay the same.

    Args:
        graph: changed in place.
        passes: passes to run.
        before: outputs of the graph before the passes.

    Returns:
        How often each pass applied, and the outputs afterwards.

    Raises:
        PassError: the outputs differ.
    """
    original = replace(graph, module=G.clone(graph.module))
    counts = run_passes(graph.module, passes)
    if not any(counts.values()):
        return counts, before
    return counts, check_rewritten(original, graph, before)


def check_rewritten(
    original: FloatGraph, graph: FloatGraph, before: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Check on the example that passes kept the outputs; return them.

    Args:
        original, graph: the graph before and after.
        before: outputs of the original.

    Raises:
        PassError: the outputs differ.
    """
    after = example_outputs(graph)
    with torch.no_grad():
        same_function(before, after, noise=lambda: max(_noise(original), _noise(graph)))
    return after


def _noise(graph: FloatGraph) -> float:
    """Return the float rounding noise of a graph; a folded part may have most of it."""
    batch = _first_samples(graph)
    return float_tolerance(graph.module, batch.args, batch.kwargs)


def example_outputs(graph: FloatGraph) -> list[torch.Tensor]:
    """Return the outputs on the first `COMPARED` samples of the example."""
    batch = _first_samples(graph)
    with torch.no_grad():
        return outputs_of(graph.module, batch.args, batch.kwargs)


def _first_samples(graph: FloatGraph) -> Batch:
    return graph.smaller(Batch(*graph.example), COMPARED_SAMPLES)
