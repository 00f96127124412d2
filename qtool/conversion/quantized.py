"""The quantized model: a callable graph, its plan, and the file made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool.algorithms.acceptance import measure_errors
from qtool.algorithms.pipeline import ConversionState
from qtool.algorithms.registry import ESTIMATE_SAMPLES, select_steps
from qtool.backends.onnx.export import is_qoperator, lower_to_qdq, to_onnx, to_qoperator
from qtool.backends.onnx.file_info import FileInfo, NodeInfo, own_version
from qtool.backends.onnx.self_test_format import SelfTest, attach
from qtool.backends.onnx.storage import atomic_save, save
from qtool.backends.onnxruntime.cpu import machine_profile, runs_here
from qtool.backends.onnxruntime.integer_engine import Program, lower
from qtool.backends.profiles import profile as profile_of
from qtool.backends.runtime import Runtime
from qtool.backends.runtime_table import runtime
from qtool.core import graph as G
from qtool.core.atomic import scratch_folder
from qtool.core.data import Batch
from qtool.core.errors import VerificationError, describe
from qtool.core.graph.fingerprint import state_hash
from qtool.core.graph.process_lock import exclusive, relaxed_gc, trim_memory
from qtool.core.path_arguments import accepts_paths
from qtool.planning.fake_quantize import insert_points, quant_points
from qtool.planning.plan import Execution
from qtool.planning.targets import Target, check_format, target
from qtool.verification import (
    Coverage,
    Exactness,
    Expected,
    ExportedFile,
    Fidelity,
    Parity,
    Verification,
    audit,
    check_parity,
    check_structure,
    check_well_formed,
    compare_codes,
    compare_nodes,
    compare_outputs,
    costliest_layers,
    executed_coverage,
    make_self_test,
    narrow_inputs,
    planned_coverage,
)
from qtool.verification.fidelity import Outputs, holdout_sqnr
from qtool.verification.heavy_tails import heavy_tails
from qtool.verification.near_zero_divisions import near_zero_divisions
from qtool.verification.portability import Portability, portability
from qtool.verification.self_test_inputs import SAMPLES
from qtool.verification.strip_padding import Padding

LARGE = 1 << 24  # bytes of weights from which on memory is given back between checks
OTHER_SAMPLES, WORK = 32, 2 * 10**9
"""Of the sample, for other CPUs; fewer where they take more multiply-accumulates than this."""
STEP_SAMPLES = 4
"""Of the sample; all values between the steps are held at once."""


class Quantized:
    """A model on the grid of its integers, callable as the float model was.

    Calling it runs fake quantization in torch (with a straight-through gradient to its own copies
    of the weights); `export` writes the integer model.
    """

    def __init__(self, state: ConversionState, sample: Batch) -> None:
        """
        Args:
            state: a conversion with its parameters solved.
            sample: a batch that exports are verified with, bound to the inputs of the graph.
        """
        assert state.parameters is not None
        own = G.clone_with_parameters(state.graph.module)
        self.graph = replace(state.graph, module=own)  # of no second copy of the weights
        self.reference = state.captured.graph  # what this model is compared with
        self.plan = state.plan
        self.changes = state.changes
        self.parameters = state.parameters.params
        self.notes = state.parameters.notes
        self.sample = sample
        learned = any(step.samples for step in select_steps(state.plan.recipe))
        self._aside = state.quick_batches(limit=ESTIMATE_SAMPLES, holdout=True if learned else None)
        self._known = {} if state.calibration is None else state.calibration.kept.cache
        self._kept: dict[str, Any] = {}
        self.module = insert_points(own, state.plan)
        for name, point in quant_points(self.module).items():
            point.set_params(self.parameters[name])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Fake-quantized outputs, in the structure the float model returns them."""
        return self.module(*args, **kwargs)

    @property
    def qdq(self) -> fx.GraphModule:
        """The QDQ graph in torch: integer weights, quantize and dequantize; what is exported."""
        found: fx.GraphModule = self._found("graph", self._lowered)
        return found

    @exclusive
    def to_onnx(self, format: str = "qdq") -> onnx.ModelProto:  # noqa: A002  # the field's word
        """The ONNX model, unverified. Most people want `export`, which has the arguments."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self._model(format))  # what is kept stays as it is
        return copy

    def _model(self, format: str = "qdq") -> onnx.ModelProto:  # noqa: A002  # the field's word
        check_format(target(self.plan.target).name, format)
        self._found("model", self._written)
        return self._formatted(format)

    def _formatted(self, format: str) -> onnx.ModelProto:  # noqa: A002  # the field's word
        model: onnx.ModelProto = self._kept["model"]
        if format == "qdq":
            return model
        return to_qoperator(model, target(self.plan.target).types.activation.signed)

    def _lowered(self) -> fx.GraphModule:
        return lower_to_qdq(self.module, self.plan, target(self.plan.target))

    def _written(self) -> onnx.ModelProto:
        if (read := self._kept.get("file")) is not None:
            model: onnx.ModelProto = ir.to_proto(read.model)
            return model
        chosen = target(self.plan.target)
        return to_onnx(
            self._lowered(),
            self.graph,
            chosen.file.opset,
            chosen.file.ir_version,
            self.info.metadata(),
            chosen.file.contrib,
            chosen.file.workarounds,
        )

    def _found(self, what: str, make: Callable[[], Any]) -> Any:
        """What was made of this model before, unless it was trained since."""
        mark = state_hash(self.module)
        if self._kept.get("mark") != mark:
            self._kept = {"mark": mark}
        if what not in self._kept:
            self._kept[what] = make()
        return self._kept[what]

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
    ) -> Verification | None:
        """Writes the integer model, after showing that it is right.

        The file is made aside, checked (see `verify`), and moved into place; on any failure what
        was there before stays. A model beyond the 2 GiB that one file may have gets its weights in
        a second file beside it, `<path>.<digest>.data`, which has to stay there. It carries a test
        of itself, which `qtool.verify` runs wherever the file is.

        Args:
            path: the file to write.
            verify: False leaves the check out.
            format: "qdq", float operators between Q and DQ that the runtime fuses, or "qoperator",
                the runtime's integer operators themselves.
            external_data: the second file is written for a smaller model, too.

        Raises:
            ExportError: an operator cannot be written, or the target takes no such format.
            FileError: the file cannot be written.
            VerificationError: the file does not do what the plan says.
        """
        self._model(format)
        self._make_room()  # what it was made of holds all codes twice
        with atomic_save(self._formatted(format), path, external_data) as temporary:
            artefact = ExportedFile(temporary)
            if format == "qdq" and verify:  # as it was read back: one copy of the weights
                self._kept["file"] = artefact.file
                self._kept.pop("model", None)
                self._make_room()
            result = self._verified(artefact, self.sample) if verify else None
            if result is not None and not result.passed:
                why = f"{result.exactness}; {result.parity}".replace("\n", "; ")
                raise VerificationError(
                    f"the exported model does not compute what was planned ({why}); "
                    f"{path} was not written"
                )
            attach(temporary, self._self_test(artefact))
        if result is not None and format == "qdq":
            self._kept["coverage"] = result.coverage
        return result

    def _self_test(self, artefact: ExportedFile) -> SelfTest:
        """The test that a file carries."""
        artefact.close()
        if is_qoperator(artefact.file.outline):
            artefact = ExportedFile(artefact.path, qdq=self._model())
        sample = self.graph.smaller(self.sample, SAMPLES)
        return make_self_test(artefact, sample.arrays(), sum(d.macs for d in self.plan.nodes))

    def _make_room(self) -> None:
        """Where that is worth its time."""
        if sum(p.nbytes for p in self.reference.module.parameters()) >= LARGE:
            trim_memory()

    @accepts_paths("path")
    @exclusive
    def verify(self, path: str | Path | None = None, sample: Batch | None = None) -> Verification:
        """Checks an exported file (by default a fresh export) against this model.

        The ONNX checker; channel axes, bias scales and weight types; outputs in ONNX Runtime
        against the integer engine (every bit) and the fake-quantized model (a few codes) on
        `sample`, by default the batch kept from calibration or conversion; the coverage audit.

        Raises:
            VerificationError: the file is malformed or the runtime refuses it. A difference in
            outputs does not raise here: see `Verification.passed`.
        """
        if path is None:
            with scratch_folder() as folder:
                fresh = folder / "model.onnx"
                save(self._model(), fresh)
                return self.verify(fresh, sample)
        return self._verified(ExportedFile(path), sample or self.sample)

    @exclusive
    def check_file(self, path: str | Path) -> tuple[Parity, Exactness | None]:
        """What `verify` says of whether a file is right, and nothing of what the plan is worth."""
        return self._judged(ExportedFile(path), self.sample, self.sample.arrays())

    def _verified(self, artefact: ExportedFile, batch: Batch) -> Verification:
        if is_qoperator(artefact.file.outline):
            artefact = ExportedFile(artefact.path, qdq=self._model())
        inputs = batch.arrays()
        poles = self._poles(batch)  # before sessions hold memory of their own
        parity, exactness = self._judged(artefact, batch, inputs)
        if exactness is None:
            asked, missing = _asked(target(self.plan.target))
            covered = self._covered(artefact, asked)
            near = self._near(batch, poles)
            return Verification(parity, None, covered, near, missing=missing)
        near = self._near(batch, poles, artefact.run(inputs))
        return Verification(parity, exactness, audit(artefact), near, self._portability(artefact))

    def _judged(
        self, artefact: ExportedFile, batch: Batch, inputs: Sequence[Any]
    ) -> tuple[Parity, Exactness | None]:
        """Whether a file does what the plan says; inputs: the arrays of the batch."""
        chosen = target(self.plan.target)
        integer = {d.node for d in self.plan.nodes if d.execution is Execution.INTEGER}
        wanted = Expected(
            chosen.types.bias is not None, chosen.types.symmetric, chosen.saturation_limit
        )
        check_well_formed(artefact.file)
        check_structure(artefact.qdq, integer, wanted)
        asked, _ = _asked(chosen)
        known = asked is not None and asked.graph_readable
        few = self.graph.smaller(batch, STEP_SAMPLES)
        coded, some = self._expected(batch), self._expected(few)
        if known:  # and then there is room for the engine
            artefact.run(inputs)
            artefact.close()
            self._make_room()
        program = artefact.program() if known else None
        steps, found = compare_nodes(artefact, self.module, _beside(self.module, few), program)
        parity = check_parity(artefact, inputs, coded, self._steps(), asked, (some, found))
        parity = replace(parity, steps=steps)
        if not known:
            return parity, None
        exactness = compare_codes(artefact, [inputs])
        if exactness.exact:  # steps and kernels are judged: no limit on the outputs is needed
            parity = replace(parity, tolerance=None)
        return parity, exactness

    def _portability(self, artefact: ExportedFile) -> Portability | None:
        """How the file behaves on other CPUs, on as many samples as cost little."""
        macs = max(1, sum(d.macs for d in self.plan.nodes))
        few = self.graph.smaller(self.sample, max(STEP_SAMPLES, min(OTHER_SAMPLES, WORK // macs)))
        same = bool(target(self.plan.target).agreement)
        return portability(artefact, machine_profile(), few.arrays(), same)

    def integer(self, profile: str | None = None) -> Program:
        """The integer program of this model: call it with inputs, get output codes.

        Args:
            profile: whose arithmetic (`qtool.backends.profiles.PROFILES`); by default that of ONNX
                Runtime on this processor for targets that it runs here, else the target's.

        Raises:
            KernelError: a kernel cannot represent the parameters of a node; names it.
        """
        aimed = target(self.plan.target)
        own = None if runs_here(aimed) else aimed.profile
        return lower(self._model(), profile or own)

    @property
    def coverage(self) -> Coverage:
        """The integer coverage audit of the exported model; what `export` found, after it."""
        asked, _ = _asked(target(self.plan.target))
        if asked is None:
            return planned_coverage(self.plan)
        found: Coverage = self._found("coverage", lambda: self._audited(asked))
        return found

    def _audited(self, asked: Runtime) -> Coverage:
        with scratch_folder() as folder:
            fresh = folder / "model.onnx"
            save(self._model(), fresh)
            return self._covered(ExportedFile(fresh), asked)

    def _covered(self, artefact: ExportedFile, asked: Runtime | None) -> Coverage:
        """What runs in integers: found in the runtime's graph, said by itself, or planned."""
        if asked is not None and asked.graph_readable:
            return audit(artefact)
        if asked is not None and asked.executed_kernels is not None:
            return executed_coverage(artefact.path, self.plan, asked)
        return planned_coverage(self.plan)

    @property
    def fidelity(self) -> Fidelity:
        """How near the outputs are to those of the float model, on the sample kept for exports."""
        sample = self.sample
        found: Fidelity = self._found("fidelity", lambda: self._near(sample, self._poles(sample)))
        return found

    def _near(
        self, sample: Batch, poles: tuple[str, ...], outputs: Sequence[Any] | None = None
    ) -> Fidelity:
        """Of these outputs for a batch, by default those of fake quantization."""
        coded = self._expected(sample) if outputs is None else outputs
        real = _outputs(self.reference.module, sample)
        padding, given = Padding.of_graph(self.graph), sample.arrays()
        pair = (padding.strip(given, o) for o in (real, coded))
        found = compare_outputs(sample.size, self.graph.outputs, *pair)
        if self._aside:
            promised = self._found("promised", self._promised)
            found = replace(found, expected=promised, n_holdout=sum(b.size for b in self._aside))
        graph, batch = self._with_points(), _beside(self.module, sample)
        narrow = narrow_inputs(graph, self.plan, self.parameters, batch)
        tails = heavy_tails(graph, batch)
        found = replace(found, narrow=narrow, near_zero_divisions=poles, heavy_tails=tails)
        if found.warning is None:
            return found
        return replace(found, costly=costliest_layers(graph, self.plan, batch))

    def _poles(self, sample: Batch) -> tuple[str, ...]:
        """The divisions that a sample comes near the pole of."""
        return near_zero_divisions(self._with_points(), _beside(self.module, sample))

    def _with_points(self) -> G.FloatGraph:
        return replace(self.graph, module=self.module)

    def _promised(self) -> Outputs:
        """What the outputs keep on samples that no step of the conversion learned from."""
        moved = [_beside(self.module, batch) for batch in self._aside]
        found = measure_errors(self.reference.module, [self._with_points()], moved, self._known)
        nodes = G.output_nodes(self.graph.graph)
        names = [n for n, node in zip(self.graph.outputs, nodes, strict=True) if G.is_float(node)]
        return holdout_sqnr(names, [(e.signal.sum(1), e.noise.sum(1)) for e in found[0]])

    def _expected(self, sample: Batch) -> list[Any]:
        """The outputs of fake quantization, as arrays."""
        return _outputs(self.module, sample)

    def _steps(self) -> Sequence[float | None]:
        """The size of a code of each output; None where it is float."""
        found: list[float | None] = []
        for node in G.output_nodes(self.graph.graph):
            params = self.parameters.get(G.name_of(node))
            own = params is not None and params.axis is None  # not a weight, given out as it is
            found.append(float(params.scale) if params is not None and own else None)
        return found

    @property
    def info(self) -> FileInfo:
        """What an exported file says of itself."""
        plan = self.plan
        nodes = tuple(
            NodeInfo(d.node, d.op, d.execution.value, d.reason, d.macs)
            for d in plan.nodes
            if d.execution is not Execution.SHAPE
        )
        made = (own_version(), plan.target, plan.digest, plan.observer, plan.recipe)
        return FileInfo(*made, nodes, self.changes)


def _asked(chosen: Target) -> tuple[Runtime | None, str]:
    """The runtime to verify in; without it a sentence, where it could be asked."""
    found = runtime(chosen.runtime)
    if found is None:
        return None, ""
    if not found.installed:
        return None, (
            f"{found.title} is not installed: the file was run as written in ONNX Runtime alone; "
            f"pip install {found.package} has it verified where it will run"
        )
    if chosen.runtime == "onnxruntime" and not runs_here(chosen):
        cpu = profile_of(machine_profile()).cpus
        return None, (
            f"target {chosen.name} is not for this CPU ({cpu}): the file was run as written alone; "
            "verify it on the CPU it is for, or convert with --target onnxruntime"
        )
    return found, ""


def _outputs(module: nn.Module, sample: Batch) -> list[Any]:
    moved = _beside(module, sample)
    try:
        with torch.no_grad():
            return _arrays(pytree.tree_leaves(module(*moved.args, **moved.kwargs)))
    except RuntimeError as error:  # sizes that values decide
        raise VerificationError(f"the model does not run in codes: {describe(error)}") from error


def _arrays(found: Sequence[torch.Tensor]) -> list[Any]:
    return [t.detach().cpu().numpy() for t in found]  # an output may be a parameter


def _beside(module: nn.Module, sample: Batch) -> Batch:
    """The sample where the module's parameters are."""
    return sample.to(next((p.device for p in module.parameters()), torch.device("cpu")))
