"""Writing and verification of the TFLite file of a quantized model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qtool.backends.export import Checked, ExportOptions
from qtool.backends.onnx.export import lower_to_qdq
from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.onnxruntime.self_test.inputs import SAMPLES
from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.atomic import atomic_path, scratch_folder
from qtool.core.data import Batch
from qtool.core.errors import ExportError, VerificationError
from qtool.core.option_names import TFLITE_SUFFIX
from qtool.core.remedies import Argument, Omission, Package
from qtool.core.types import Array
from qtool.core.versions import own_version
from qtool.planning.fake_quantize import QuantPoint
from qtool.planning.targets import target
from qtool.plugins.tflite import deployment, litert, microcontroller, tflm
from qtool.plugins.tflite.coverage import tflite_coverage
from qtool.plugins.tflite.export import Layout, Written, to_tflite
from qtool.plugins.tflite.file import Model, to_bytes
from qtool.plugins.tflite.layout_options import describe_interface, layout_of
from qtool.plugins.tflite.self_test import with_self_test
from qtool.plugins.tflite.self_test_creation import make_self_test
from qtool.plugins.tflite.tflite_file import TfliteFile
from qtool.plugins.tflite.verification import compare_litert_codes
from qtool.simulation.fake_quantized import FakeQuantized
from qtool.simulation.simulation_parity import compare_points
from qtool.verification import Coverage, NodeParity, Parity, planned_coverage
from qtool.verification.parity import difference

FAMILY = "tflite"
"""Numerics profile of the targets that TFLite files are written for."""
_FEW = 4
"""Samples on which every tensor is compared with the plan."""
_SLACK = 1.0
"""Codes that an integer kernel may be off beyond rounding: it rounds twice in places."""
_MISSING = (
    f"{litert.TITLE} is not installed: the file was compared with the plan in qtool's integer "
    f"engine only; pip install {litert.PACKAGE} has it verified where it will run"
)
_NO_DELEGATE = (
    "XNNPACK, LiteRT's default delegate, fails on this file, which is a bug there: run it with "
    "BUILTIN_WITHOUT_DEFAULT_DELEGATES"
)


def save(written: Written, path: Path) -> None:
    """Write the bytes of a file."""
    path.write_bytes(to_bytes(written.model))


def publish(verified: Path, path: Path) -> None:
    """Copy a verified file into place.

    Raises:
        FileError: the place cannot be written.
    """
    with atomic_path(path, (TFLITE_SUFFIX,)) as temporary:
        temporary.write_bytes(verified.read_bytes())


def write(
    model: FakeQuantized,
    qdq: torch.fx.GraphModule,
    layout: Layout,
    info: Mapping[str, str] | None = None,
) -> Written:
    """Return the TFLite model of a quantized model.

    Args:
        model: the quantized model.
        qdq: its QDQ graph.
        layout: layout of inputs and outputs.
        info: description of the conversion for the file.

    Raises:
        ExportError: the target has no TFLite files, or an operator cannot be written.
    """
    chosen = target(model.plan.target)
    if chosen.profile != FAMILY:
        raise ExportError(
            f"target {chosen.name} writes ONNX files",
            Argument("--target", "tflite", "for a TFLite file use {}"),
            Argument("--target", deployment.TARGET, "{}"),
        )
    small = chosen.name == deployment.TARGET
    metadata = {
        "version": own_version(),
        "target": chosen.name,
        "plan": model.plan.digest,
    }
    written = to_tflite(qdq, model.graph, model.plan, metadata, layout, info)
    if small:
        microcontroller.check(written.model, {d.node: d.reason for d in model.plan.nodes})
    return written


def with_split_outputs(model: FakeQuantized, written: Written) -> FakeQuantized:
    """Return the simulation with split outputs: one is stored as a sum of several int8 tensors."""
    if not written.parts:
        return model
    module = G.clone(model.module)
    for node in list(module.graph.nodes):
        point = G.submodule(module, node)
        parts = written.parts.get(value_names.quantize(getattr(point, "point", "")))
        if point is None or parts is None:
            continue
        fine = copy.deepcopy(point)
        assert isinstance(fine, QuantPoint)
        fine.set_params(parts.params)
        node.target = f"fine_{node.name}"
        module.add_submodule(node.target, fine)
    module.recompile()
    return replace(model, module=module)


def _first(model: FakeQuantized, batch: Batch) -> Batch:
    """Return the first sample, which is all that a file for one sample takes at a time."""
    return model.graph.call_of([t[:1] if t.dim() else t for t in model.graph.tensors_of(batch)])


def _compare_points(
    model: FakeQuantized,
    written: Written,
    file: TfliteFile,
    few: Batch,
    values: Mapping[str, torch.Tensor],
) -> tuple[NodeParity, Sequence[Array]]:
    """Compare every quantized tensor with the plan, on the file's own values before it."""
    names = [t.name for t in written.model.tensors]
    points = {
        name: value.to_graph(values[names[value.index]])
        for name, value in written.points.items()
        if names[value.index] in values
    }
    for name, parts in written.parts.items():
        codes = [values[names[i]].to(torch.int32) for i in parts.tensors]
        lowest = torch.iinfo(values[names[parts.tensors[0]]].dtype).min
        points[name] = torch.stack(codes).sum(0) - lowest * len(codes)
    results = [values[names[i]].numpy() for i in written.model.outputs]
    outputs = [port.back(r) for port, r in zip(file.outputs, results, strict=True)]
    named = dict(zip(model.graph.outputs, outputs, strict=True))
    compared, wrong = compare_points(
        model.module, model.to_device(few), named, points, written.discontinuous, _SLACK
    )
    return NodeParity(few.size, compared, tuple(wrong)), outputs


class TfliteExport:
    """See `Export`.

    Args:
        simulation: the quantized model.
        metadata: the description for the file.
    """

    def __init__(self, simulation: FakeQuantized, metadata: Mapping[str, str]) -> None:
        self.simulation, self._metadata = simulation, metadata

    @contextmanager
    def writing(
        self,
        path: Path,
        options: ExportOptions,
        sample: Batch,
        verify: bool,  # noqa: ARG002  # nothing is kept for it
    ) -> Iterator[PlannedTflite]:
        """See `Export`. A TFLite file carries a test of itself."""
        if options.external_data:
            raise ExportError("a TFLite file holds its weights itself", Omission("--external-data"))
        plan = self.simulation.plan
        written = self._write(layout_of(self.simulation.graph, plan.target, options))
        with scratch_folder() as folder:
            temporary = folder / "model.tflite"
            save(written, temporary)
            few = self.simulation.graph.smaller(sample, SAMPLES).arrays()
            test = make_self_test(TfliteFile(temporary), few, self.simulation.macs)
            temporary.write_bytes(with_self_test(written.model, test))
            yield PlannedTflite(with_split_outputs(self.simulation, written), written, temporary)
            publish(temporary, path)

    def _write(self, layout: Layout) -> Written:
        plan = self.simulation.plan
        qdq = lower_to_qdq(self.simulation.module, plan, target(plan.target))
        return write(self.simulation, qdq, layout, self._metadata)

    def file(self, path: Path, sample: Batch) -> PlannedTflite:  # noqa: ARG002  # a protocol
        """See `Export`. The layout is that of the file."""
        file = TfliteFile(path)
        ports = [*file.inputs, *file.outputs]
        last, codes = any(p.order == (0, 2, 3, 1) for p in ports), any(p.params for p in ports)
        written = self._write(Layout(last, codes, file.is_fixed))
        if _structure(written.model) != _structure(file.model):
            raise VerificationError(
                f"{path} is not a file of this model: its operators or tensors are others"
            )
        return PlannedTflite(with_split_outputs(self.simulation, written), written, path)

    def coverage(self) -> Coverage:
        """See `Export`."""
        return planned_coverage(self.simulation.plan)

    def program(self, profile: str | None = None) -> Program:
        """See `Export`. Inputs and outputs are in the layout of the network."""
        small = self.simulation.plan.target == deployment.TARGET
        written = self._write(Layout(channels_last=False, one_sample=small))
        with scratch_folder() as folder:
            save(written, folder / "model.tflite")
            return _ending_in_codes(TfliteFile(folder / "model.tflite").program(profile))


def _structure(model: Model) -> tuple[Any, ...]:
    """Return operators and tensors without values."""
    tensors = tuple((t.name, t.type, t.shape) for t in model.tensors)
    return tensors, tuple((o.name, o.inputs, o.outputs) for o in model.operators)


def _ending_in_codes(program: Program) -> Program:
    """Return a program that leaves quantized outputs in codes."""
    codes = {s.output: s.inputs[0] for s in program.instructions if s.kind == "dequantize"}
    return replace(program, outputs=tuple(codes.get(n, n) for n in program.outputs))


@dataclass(frozen=True)
class PlannedTflite:
    """A TFLite file of a quantized model; see `PlannedFile`."""

    simulation: FakeQuantized
    written: Written
    path: Path

    def check(self, batch: Batch) -> Checked:
        """See `PlannedFile`."""
        model, file = self.simulation, TfliteFile(self.path)
        installed = litert.version() is not None
        few = _first(model, batch) if file.is_fixed else model.graph.smaller(batch, _FEW)
        program = file.program(None if installed else FAMILY)
        if installed:
            values = file.trace(few.arrays())
        elif program.float_nodes:
            raise ExportError(
                f"the file computes in float in places, which only {litert.TITLE} can verify",
                Package(litert.PACKAGE),
            )
        else:
            values = program.values(*map(torch.from_numpy, file.arrays(few.arrays())))
        steps, few_outputs = _compare_points(model, self.written, file, few, values)
        expected_few = model.run(few)
        scales = model.output_scales()
        as_written = difference(expected_few, few_outputs, scales)
        if not installed:
            parity = Parity(batch.size, as_written, None, None, "", steps)
            missing, remarks = _MISSING, describe_interface(file, model.graph)
            coverage = tflite_coverage(file)
            return Checked(parity, None, coverage, missing=missing, remarks=remarks)
        arrays = batch.arrays()
        outputs, remarks = file.run(arrays), describe_interface(file, model.graph)
        try:
            default = difference(model.run(batch), file.run(arrays, default=True), scales)
        except VerificationError as error:
            default = None
            remarks = (*remarks, f"{_NO_DELEGATE} ({error})")
        parity = Parity(
            batch.size,
            as_written,
            default,
            None,
            f"{litert.TITLE} {litert.version()} with XNNPACK",
            steps,
        )
        exactness = compare_litert_codes(file, [arrays])
        if file.metadata.get("target") == deployment.TARGET and tflm.version() is not None:
            remarks = (*remarks, microcontroller.compare(file, arrays))
        reasons = {d.node: d.reason for d in model.plan.nodes}
        coverage = tflite_coverage(file, reasons)
        return Checked(parity, exactness, coverage, outputs, remarks=remarks)

    def takes(self, batch: Batch) -> bool:
        """See `PlannedFile`. Sizes other than that of the batch are those of the example."""
        return TfliteFile(self.path).takes(batch.arrays())

    @property
    def place(self) -> str:
        """See `PlannedFile`."""
        return "" if litert.version() is not None else "qtool's integer engine"

    def run(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """See `PlannedFile`."""
        file = TfliteFile(self.path)
        if litert.version() is None:
            codes = file.engine_codes(file.program(FAMILY), arrays)
            return [port.back(c) for port, c in zip(file.outputs, codes, strict=True)]
        try:
            return file.run(arrays, default=True)
        except VerificationError:  # as `check` says, the delegate fails on it
            return file.run(arrays)

    def correctness(self, batch: Batch) -> Checked:
        """See `PlannedFile`."""
        return self.check(batch)
