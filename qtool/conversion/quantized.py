"""The quantized model: a callable graph, its plan, and the file written from it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import fx

from qtool.algorithms.acceptance import HOLDOUT_BATCH
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.registry import ESTIMATE_SAMPLES, select_steps
from qtool.backends.export import Export, ExportOptions, PlannedFile
from qtool.backends.model_file import FileFormat
from qtool.backends.onnx.export import lower_to_qdq
from qtool.backends.onnx.file_info import FileInfo, NodeInfo
from qtool.backends.onnx.origin import Origin, present_versions
from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.onnxruntime.model_file import ONNX
from qtool.backends.onnxruntime.planned_export import OnnxExport
from qtool.backends.table import format_of
from qtool.conversion.dimensions_of_file import UnfollowedSizesError, with_fixed_dimensions
from qtool.conversion.fidelity_measurement import (
    find_near_zero_divisions,
    measure_fidelity,
    measure_holdout,
)
from qtool.conversion.trained_weights import restore_pair_limits
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import VerificationError
from qtool.core.graph.fingerprint import state_hash, weights_digest
from qtool.core.graph.process_lock import exclusive, relaxed_gc
from qtool.core.option_names import file_format
from qtool.core.path_arguments import accepts_paths
from qtool.core.summary import Summary
from qtool.core.versions import own_version
from qtool.planning.fake_quantize import insert_points, quant_points
from qtool.planning.plan import Execution
from qtool.planning.targets import check_format, target
from qtool.verification import Coverage, Exactness, Fidelity, Parity, Verification, planned_coverage
from qtool.verification.fake_quantized import FakeQuantized
from qtool.verification.fidelity import Outputs

if TYPE_CHECKING:
    import onnx


@dataclass
class _Results:
    """Results of one state of the weights, each computed when it is first needed.

    Attributes:
        state: hash of the weights.
        graph: the QDQ graph in torch.
        exports: suffix of a format -> its writer.
        fidelity: on the sample that exports are verified with.
        holdout: SQNR of the outputs on held-out samples.
    """

    state: str = ""
    graph: fx.GraphModule | None = None
    exports: dict[str, Export] = field(default_factory=dict)
    fidelity: Fidelity | None = None
    holdout: Outputs | None = None


class Quantized:
    """A quantized model, callable as the float model was.

    Calling it runs fake quantization in torch (with a straight-through gradient to its own copies
    of the weights); `export` writes the integer model.

    Attributes:
        module: the fake-quantized network as an nn.Module (a torch.fx.GraphModule): its
            parameters are copies of the float weights, which may be trained; `state_dict`,
            `load_state_dict` and `to` are those of torch. docs/training.md has an example.
        plan: the decision for each node.
        changes: what the recovery steps changed.
        notes: sentences for the user.
    """

    def __init__(self, state: ConversionState, sample: Batch) -> None:
        """
        Args:
            state: a conversion with its parameters solved.
            sample: a batch that exports are verified with, bound to the inputs of the graph.
        """
        assert state.parameters is not None
        own = G.clone_with_parameters(state.graph.module)
        self.graph = replace(state.graph, module=own)  # holds no second copy of the weights
        self.captured = state.captured
        self.reference = state.captured.graph  # what this model is compared with
        calibration, self._fingerprint = state.calibration, state.captured.fingerprint
        self._data = ("", 0) if calibration is None else (calibration.data, calibration.samples)
        self.plan = state.plan
        self.changes = state.changes
        self.parameters = state.parameters.params
        self.notes = state.parameters.notes
        self.sample = sample
        learned = any(step.samples for step in select_steps(state.plan.recipe))
        limit, holdout = ESTIMATE_SAMPLES, True if learned else None
        self._holdout = state.batches(HOLDOUT_BATCH, limit, holdout, channels_last=True)
        self._error_cache = (
            {} if state.calibration is None else state.calibration.kept_samples.cache
        )
        self._stored = _Results()
        self.module = insert_points(own, state.plan)
        for name, point in quant_points(self.module).items():
            point.set_params(self.parameters[name])
        self._marks = self._weight_marks()

    def _weight_marks(self) -> list[tuple[int, int]]:
        """Return the address and the version of each tensor, which a change in place raises."""
        return [(t.data_ptr(), t._version) for t in self.module.parameters()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return fake-quantized outputs, in the structure the float model returns them."""
        return self.module(*args, **kwargs)

    @property
    def _simulation(self) -> FakeQuantized:
        return FakeQuantized(self.graph, self.module, self.reference, self.plan, self.parameters)

    @property
    def _results(self) -> _Results:
        """Results of the present weights; those of other weights are dropped."""
        if self._weight_marks() != self._marks:  # they were trained
            restore_pair_limits(self.graph.module.graph, self.module, self.plan)
            self._holdout = []  # training may have used these samples
            self._marks = self._weight_marks()
        state = state_hash(self.module)
        if self._stored.state != state:
            self._stored = _Results(state)
        return self._stored

    @property
    def qdq(self) -> fx.GraphModule:
        """The QDQ graph in torch that is exported: integer weights, quantize and dequantize."""
        results = self._results
        if results.graph is None:
            results.graph = lower_to_qdq(self.module, self.plan, target(self.plan.target))
        return results.graph

    def _export_as(self, kind: FileFormat) -> Export:
        """Return the writer of a format; what it makes is kept while the weights are the same."""
        exports = self._results.exports
        if kind.suffix not in exports:
            exports[kind.suffix] = kind.export(self._simulation, self.info.metadata())
        return exports[kind.suffix]

    @property
    def _onnx(self) -> OnnxExport:
        export = self._export_as(ONNX)
        assert isinstance(export, OnnxExport)
        return export

    @exclusive
    def to_onnx(self, format: str = "qdq") -> onnx.ModelProto:  # noqa: A002  # the field's word
        """Return the ONNX model, unverified. Most people want `export`, which has the arguments."""
        check_format(target(self.plan.target).name, format)
        return copy.deepcopy(self._onnx.model(format))  # the stored one stays as it is

    @accepts_paths("path")
    @exclusive
    @relaxed_gc()
    def export(
        self,
        path: str | Path,
        verify: bool = True,
        *,
        format: str = "qdq",  # noqa: A002  # the word of the field
        external_data: bool = False,
        layout: str = "nhwc",
        interface: str | None = None,
    ) -> Verification | None:
        """Write the integer model after verifying it.

        The file is written to a temporary path, checked (see `verify`) and moved into place; on
        any failure the previous file stays. A model beyond the 2 GiB that one file may have gets
        its weights in a second file next to it, `<path>.<digest>.data`, which has to stay there.
        The file carries a test of itself, which `qtool.verify` runs wherever the file is.

        Args:
            path: the file to write.
            verify: False skips the check.
            format: "qdq", float operators between Q and DQ that the runtime fuses, or "qoperator",
                the runtime's integer operators themselves. A path that ends in .tflite is written
                as "tflite"; "c-array" is that file as C source.
            external_data: write the second file for a smaller model, too.
            layout: of images at the interface of a TFLite file: "nhwc", or "nchw" as in PyTorch.
            interface: "float" or "int8" inputs and outputs of a TFLite file; by default int8 on
                microcontrollers, float elsewhere.

        Raises:
            ExportError: an operator cannot be written, or the target has no such format.
            FileError: the file cannot be written.
            VerificationError: the file does not compute what the plan says.
        """
        kind = file_format(path, format)
        check_format(self.plan.target, kind)
        options = ExportOptions(kind, external_data, layout, interface)
        try:
            return self._write(Path(path), options, verify)
        except UnfollowedSizesError as error:  # the file is right with these dimensions fixed
            self.graph, sentences = with_fixed_dimensions(self.graph, self.sample, error.check)
            self._stored = _Results()
            self.notes = (*self.notes, *sentences)
            return self._write(Path(path), options, verify)

    def _write(self, path: Path, options: ExportOptions, verify: bool) -> Verification | None:
        export = self._export_as(format_of(options.format))
        with export.writing(path, options, self.sample, verify) as file:
            result = self._checked(file, self.sample) if verify else None
            if result is not None and not result.passed:
                why = f"{result.exactness}; {result.parity}".replace("\n", "; ")
                if unfollowed := next((c for c in result.other_sizes if c.wrong), None):
                    raise UnfollowedSizesError(unfollowed)
                raise VerificationError(
                    f"the exported model does not compute what was planned ({why}); "
                    f"{path} was not written"
                )
        return result

    def _checked(self, file: PlannedFile, batch: Batch) -> Verification:
        simulation = self._simulation
        divisions = find_near_zero_divisions(simulation, batch)  # before sessions hold memory
        checked = file.check(batch)
        fidelity = self._measure_fidelity(batch, divisions, checked.outputs, checked.simulation)
        return Verification(
            checked.parity,
            checked.exactness,
            checked.coverage,
            fidelity,
            checked.portability,
            checked.missing,
            checked.remarks,
            checked.other_sizes,
        )

    @accepts_paths("path")
    @exclusive
    def verify(self, path: str | Path | None = None, sample: Batch | None = None) -> Verification:
        """Check an exported file (by default a fresh export) against this model.

        The checks: the ONNX checker; channel axes, bias scales and weight types; outputs in ONNX
        Runtime against the integer engine (every bit) and the fake-quantized model (a few codes)
        on `sample`, by default the batch kept from calibration or conversion; the coverage audit.

        Raises:
            VerificationError: the file is malformed or the runtime refuses it. A difference in
                outputs does not raise here: see `Verification.passed`.
        """
        if path is None:
            with self._onnx.saved() as saved:
                return self.verify(saved, sample)
        return self._checked(self._onnx.file(path, self.sample), sample or self.sample)

    @exclusive
    def check_file(self, path: str | Path) -> tuple[Parity, Exactness | None]:
        """Check whether a file is correct, as `verify` does, without measuring fidelity."""
        return self._onnx.file(path, self.sample).correctness(self.sample)

    def integer(self, profile: str | None = None) -> Program:
        """Return the integer program of this model: call it with inputs, get output codes.

        Args:
            profile: whose arithmetic (`qtool.backends.profiles.PROFILES`); by default that of ONNX
                Runtime on this processor for targets that it runs here, else the target's.

        Raises:
            KernelError: a kernel cannot represent the parameters of a node; names it.
        """
        return self._onnx.program(profile)

    @property
    def float_bytes(self) -> int:
        """Size of the float model's parameters and buffers, each tensor once."""
        tensors = {t.data_ptr(): t for t in self.reference.module.state_dict().values()}
        return sum(t.numel() * t.element_size() for t in tensors.values())

    def __repr__(self) -> str:
        planned = planned_coverage(self.plan)
        label, figures = planned.row()
        figures = figures.partition(" (as planned")[0]
        mode, name = self.plan.recipe.mode, self.plan.target
        return f"<{type(self).__name__}: {mode} for {name}, {label}: {figures}>"

    def __str__(self) -> str:
        """Return what the model is in a few lines: inputs, integer share, recovery steps."""
        label, figures = planned_coverage(self.plan).row()
        rows = [("inputs", "; ".join(map(str, self.graph.inputs)))]
        rows.append((label, figures.replace("not audited on this machine", "see `coverage`")))
        steps = dict.fromkeys(change.step for change in self.changes)
        rows.append(("recovery", ", ".join(steps) or "none"))
        text = f"{self.plan.recipe.mode}, for {self.plan.target}"
        return str(Summary(type(self).__name__, text, tuple(rows), self.notes))

    @property
    def coverage(self) -> Coverage:
        """The integer coverage of the exported model; after `export`, what that measured."""
        return self._onnx.coverage()

    @property
    def fidelity(self) -> Fidelity:
        """How close the outputs are to the float model's, on the sample that exports use."""
        results = self._results
        if results.fidelity is None:
            divisions = find_near_zero_divisions(self._simulation, self.sample)
            results.fidelity = self._measure_fidelity(self.sample, divisions)
        return results.fidelity

    def _measure_fidelity(
        self,
        sample: Batch,
        divisions: tuple[str, ...],
        outputs: list[Any] | None = None,
        simulation: FakeQuantized | None = None,
    ) -> Fidelity:
        """Measure the error; `simulation` has other points than this model."""
        holdout, shown = None, simulation or self._simulation
        if self._holdout:
            results = self._results
            measured = results.holdout if simulation is None else None
            if measured is None:
                measured = measure_holdout(shown, self._holdout, self._error_cache)
            if simulation is None:
                results.holdout = measured
            holdout = measured, sum(b.size for b in self._holdout)
        return measure_fidelity(shown, sample, divisions, outputs, holdout)

    @property
    def info(self) -> FileInfo:
        """The description that an exported file carries."""
        plan = self.plan
        nodes = tuple(
            NodeInfo(d.node, d.op, d.execution.value, d.reason, d.macs)
            for d in plan.nodes
            if d.execution is not Execution.SHAPE
        )
        origin = (own_version(), plan.target, plan.digest, plan.observer, plan.recipe)
        return FileInfo(*origin, nodes, self.changes, self._origin())

    def _origin(self) -> Origin:
        data, samples = self._data
        weights = weights_digest(self.reference.module)
        return Origin(self._fingerprint, weights, data, samples, present_versions())
