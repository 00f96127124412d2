"""The quantized model: a callable graph, its plan, and the file written from it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.backends.export import Checked, Export, ExportOptions, PlannedFile
from qtool.backends.formats import ONNX, format_for, format_of, format_of_file, open_file
from qtool.backends.model_file import FileFormat
from qtool.backends.onnx.export import lower_to_qdq
from qtool.backends.onnx.file_info import FileInfo
from qtool.backends.onnx.origin import Origin, present_versions
from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.onnxruntime.planned_export import OnnxExport
from qtool.conversion.dimensions_of_file import UnfollowedSizesError, with_fixed_dimensions
from qtool.conversion.errors_at_sizes import with_more_samples
from qtool.conversion.fidelity_measurement import (
    EstimateSamples,
    find_near_zero_divisions,
    measure_estimate,
    measure_fidelity,
)
from qtool.conversion.trained_weights import restore_pair_limits
from qtool.core import graph as G
from qtool.core.atomic import scratch_folder
from qtool.core.data import Batch
from qtool.core.data.fixed_inputs import FixedInputs
from qtool.core.errors import VerificationError
from qtool.core.graph.edit import exclusive
from qtool.core.graph.fingerprint import float_arrays, state_hash, weights_digest
from qtool.core.in_process import InProcess
from qtool.core.memory import relaxed_gc
from qtool.core.option_names import file_format
from qtool.core.summary import Summarized, Summary
from qtool.core.weight_mark import weight_mark
from qtool.planning.fake_quantize import insert_points, quant_points
from qtool.planning.targets import check_format, target
from qtool.simulation.fake_quantized import FakeQuantized
from qtool.verification import Coverage, Fidelity, Verification, planned_coverage
from qtool.verification.estimate import CALIBRATION

if TYPE_CHECKING:
    import onnx

ESTIMATE_BATCH = 32
"""Most samples at once where the accuracy on new data is measured."""
VERIFIED_MACS, VERIFIED_SAMPLES = 2**36, 4
"""Multiply-accumulates that a file is verified with, and the fewest samples: a network with many
of them has many codes to compare in each sample."""


@dataclass
class _Results:
    """Results of one state of the weights, each computed when it is first needed.

    Attributes:
        state: hash of the weights.
        graph: the QDQ graph in torch.
        exports: suffix of a format -> its writer.
        last: the format of the last export.
        coverage: what the last verified export measured.
        fidelity: fidelity on the sample that exports are verified with.
    """

    state: str = ""
    graph: fx.GraphModule | None = None
    exports: dict[str, Export] = field(default_factory=dict)
    last: FileFormat | None = None
    coverage: Coverage | None = None
    fidelity: Fidelity | None = None

    def __deepcopy__(self, memo: Any) -> _Results:
        """Return the results without graphs and writers, which a copy makes anew: nodes of files
        are chained, and copying them would exceed the recursion limit."""
        return replace(self, graph=None, exports={})


class Quantized(Summarized, InProcess):
    """A quantized model, callable as the float model was.

    Calling it runs fake quantization in torch (with a straight-through gradient to its own copies
    of the weights); `export` writes the integer model.

    Attributes:
        module: the fake-quantized network as an nn.Module (a torch.fx.GraphModule): its
            parameters are copies of the float weights, which may be trained; `state_dict`,
            `load_state_dict` and `to` are those of torch. docs/recipes.md has an example.
        plan: the decision for each node.
        changes: what the recovery steps changed.
        notes: sentences for the user.
    """

    instead = (
        "`export` writes its file, and another process makes it anew with "
        "qtool.convert(model, path of a calibration that qtool.calibrate(...).save wrote); "
        "torch.save takes module.state_dict(), the weights"
    )

    def __init__(self, state: ConversionState, sample: Batch) -> None:
        """
        Args:
            state: a conversion with its parameters solved.
            sample: a batch that exports are verified with, bound to the inputs of the graph; of
                a large network its first samples are.
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
        macs = max(1, sum(d.macs for d in state.plan.nodes))
        affordable = max(VERIFIED_SAMPLES, VERIFIED_MACS // macs)
        self.sample = state.graph.smaller(sample, affordable)
        self._estimates = EstimateSamples.of(
            state, min(ESTIMATE_BATCH, state.graph.size_of(sample)), self.sample
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
            self._estimates = EstimateSamples(CALIBRATION, ())  # training may have used them
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

    @exclusive
    def to_onnx(self, format: str = "qdq") -> onnx.ModelProto:  # noqa: A002  # the field's word
        """Return the ONNX model, unverified. Most people want `export`, which has the arguments."""
        check_format(target(self.plan.target).name, format)
        export = self._export_as(ONNX)
        assert isinstance(export, OnnxExport)
        return copy.deepcopy(export.model(format))  # the stored one stays as it is

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
        batch: str | None = None,
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
                as "tflite".
            external_data: write the second file for a smaller model, too.
            layout: layout of images at the interface of a TFLite file: "nhwc", or PyTorch's "nchw".
            interface: "float" or "int8" inputs and outputs of a TFLite file; by default int8 on
                microcontrollers, float elsewhere.
            batch: samples that a TFLite file takes at a time: "1", or "dynamic" for any number; by
                default 1 on microcontrollers and where it is faster (transposed convolutions).

        Raises:
            ExportError: an operator cannot be written, or the target has no such format.
            FileError: the file cannot be written.
            VerificationError: the file does not compute what the plan says.
        """
        kind = file_format(path, format)
        check_format(self.plan.target, kind)
        options = ExportOptions(kind, external_data, layout, interface, batch)
        try:
            return self._write(Path(path), options, verify)
        except UnfollowedSizesError as error:  # the file is right with these dimensions fixed
            self.graph, sentences = with_fixed_dimensions(self.graph, self.sample, error.check)
            self._stored = _Results()
            self.notes = (*self.notes, *sentences)
            return self._write(Path(path), options, verify)

    def _write(self, path: Path, options: ExportOptions, verify: bool) -> Verification | None:
        used = format_of(options.format)
        with self._export_as(used).writing(path, options, self.sample, verify) as file:
            result = self._checked(file, self.sample) if verify else None
            if result is not None and not result.passed:
                why = f"{result.exactness}; {result.parity}".replace("\n", "; ")
                if unfollowed := next((c for c in result.other_sizes if c.wrong), None):
                    raise UnfollowedSizesError(unfollowed)
                raise VerificationError(
                    f"the exported model does not compute what was planned ({why}); "
                    f"{path} was not written"
                )
        results = self._results
        results.last, results.coverage = used, None if result is None else result.coverage
        return result

    def _checked(self, file: PlannedFile, batch: Batch) -> Verification:
        divisions = find_near_zero_divisions(self._simulation, batch)  # before sessions hold memory
        checked = file.check(batch)
        estimate = measure_estimate(file.simulation, self._estimates, file)
        fidelity = measure_fidelity(file.simulation, batch, divisions, checked.outputs, estimate)
        return Verification(
            checked.parity,
            checked.exactness,
            checked.coverage,
            fidelity,
            checked.portability,
            checked.missing,
            checked.remarks,
            with_more_samples(file.simulation, checked.other_sizes, self._estimates, file),
        )

    @exclusive
    def verify(self, path: str | Path | None = None, sample: Batch | None = None) -> Verification:
        """Check an exported file against this model.

        The checks: the structure of the file (the ONNX checker; channel axes, bias scales and
        weight types); outputs in the runtime against the integer engine (every bit) and the
        fake-quantized model (a few codes) on `sample`; the coverage audit.

        Args:
            path: an ONNX or TFLite file; by default a fresh export in the format of the last one,
                before the first in that of the target's runtime.
            sample: by default the batch kept from calibration or conversion.

        Raises:
            FileError: there is no such file, or it is no model.
            VerificationError: the file is malformed, of another model, or the runtime refuses it.
                A difference in outputs does not raise here: see `Verification.passed`.
        """
        batch = sample or self.sample
        if path is not None:
            return self._checked(self._file(Path(path)), batch)
        used = self._last_format
        with scratch_folder() as folder:
            fresh, options = folder / f"model{used.suffix}", ExportOptions(used.names[0])
            with self._export_as(used).writing(fresh, options, batch, True) as file:
                return self._checked(file, batch)

    def _file(self, path: Path) -> PlannedFile:
        return self._export_as(format_of_file(path)).file(path, self.sample)

    @property
    def _last_format(self) -> FileFormat:
        return self._results.last or format_for(target(self.plan.target))

    @exclusive
    def check_file(self, path: str | Path) -> Checked:
        """Check whether a file is correct, as `verify` does, without measuring fidelity."""
        return self._file(Path(path)).correctness(self.sample)

    def integer(self, profile: str | None = None) -> Program:
        """Return the integer program of this model: call it with inputs, get output codes.

        Args:
            profile: whose arithmetic (`qtool.backends.profiles.PROFILES`); by default that of ONNX
                Runtime on this processor for targets that it runs here, else the target's. After
                an export to TFLite, whose linear layers may be written in parts, the program is
                that of the file, by default in the arithmetic of LiteRT's reference kernels.

        Raises:
            KernelError: a kernel cannot represent the parameters of a node; names it.
        """
        program: Program = self._export_as(self._results.last or ONNX).program(profile)
        return program

    def __repr__(self) -> str:
        planned = planned_coverage(self.plan)
        label, figures = planned.row()
        figures = figures.partition(" (as planned")[0]
        mode, name = self.plan.recipe.mode, self.plan.target
        return f"<{type(self).__name__}: {mode} for {name}, {label}: {figures}>"

    def summary(self) -> Summary:
        """Return what the model is in a few lines: inputs, integer share, recovery steps."""
        label, figures = planned_coverage(self.plan).row()
        rows = [("inputs", "; ".join(map(str, self.graph.inputs)))]
        rows.append((label, figures.replace("not audited on this machine", "see `coverage`")))
        steps = dict.fromkeys(change.step for change in self.changes)
        rows.append(("recovery", ", ".join(steps) or "none"))
        text = f"{self.plan.recipe.mode}, for {self.plan.target}"
        return Summary(type(self).__name__, text, tuple(rows), self.notes)

    @property
    def coverage(self) -> Coverage:
        """The integer coverage of the exported model; after `export`, what that measured."""
        return self._results.coverage or self._export_as(self._last_format).coverage()

    @property
    def fidelity(self) -> Fidelity:
        """How close the outputs are to the float model's, on the sample that exports use."""
        results = self._results
        if results.fidelity is None:
            divisions = find_near_zero_divisions(self._simulation, self.sample)
            estimate = measure_estimate(self._simulation, self._estimates)
            results.fidelity = measure_fidelity(
                self._simulation, self.sample, divisions, estimate=estimate
            )
        return results.fidelity

    @property
    def info(self) -> FileInfo:
        """The description that an exported file carries."""
        fixed = FixedInputs.of(self.graph.module).values
        constants = {name: value.tolist() for name, value in fixed.items()}
        data = self.reference.labels, self.reference.columns
        return FileInfo.of_plan(self.plan, self.changes, self._origin(), constants, *data)

    def _origin(self) -> Origin:
        data, samples = self._data
        module, file = self.reference.module, self.captured.file
        if file is None or not file.is_file():
            floats = float_arrays(module)
        else:  # the module has folded what the file has not
            floats = open_file(file).constants()
        mark, versions = weight_mark(floats), present_versions()
        return Origin(self._fingerprint, weights_digest(module), data, samples, versions, mark)
