"""The ONNX file of a quantized model: written, checked in ONNX Runtime, lowered to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir

from qtool.backends.export import Checked, ExportOptions
from qtool.backends.onnx.export import is_qoperator, lower_to_qdq, to_onnx, to_qoperator
from qtool.backends.onnx.export.weight_storage import (
    store_as_read,
    write_plain_lookups,
    write_weights,
)
from qtool.backends.onnx.export.workarounds import ONNX_WORKAROUNDS
from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnx.self_test_format import attach
from qtool.backends.onnx.storage import atomic_save, save
from qtool.backends.onnxruntime.integer_engine import Program, lower
from qtool.backends.onnxruntime.self_test.inputs import SAMPLES
from qtool.backends.onnxruntime.self_test_creation import make_self_test
from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.planned_file import (
    check_correctness,
    measure_coverage,
    measure_portability,
)
from qtool.backends.onnxruntime.verification.size_parity import compare_sizes
from qtool.backends.runtimes import find_runtime, runs_here, runtime
from qtool.core.atomic import scratch_folder, write_atomic
from qtool.core.data import Batch
from qtool.core.graph.other_sizes import varying_dimensions
from qtool.core.types import INT16, UINT16, Array
from qtool.planning.targets import target
from qtool.simulation.fake_quantized import FakeQuantized
from qtool.verification import Coverage, planned_coverage

_ONE_SIZE = "the file was run at one size only: the float model took no other sizes tried of {}"
_OPSET_OF_16_BITS = 21
"""The first whose QuantizeLinear has codes of 16 bits."""


class OnnxExport:
    """The ONNX model of a quantized model, made once; see `Export`.

    Args:
        simulation: the quantized model.
        metadata: the description for the file.
    """

    def __init__(self, simulation: FakeQuantized, metadata: Mapping[str, str]) -> None:
        self.simulation, self._metadata = simulation, metadata
        self._target = target(simulation.plan.target)
        self._model: onnx.ModelProto | None = None
        self._file: OnnxModel | None = None  # the exported file in QDQ form replaces the model
        self._coverage: Coverage | None = None

    def model(self, name: str = "qdq") -> onnx.ModelProto:
        """Return the model in a form; it is not to be changed.

        Args:
            name: "qdq" or "qoperator".

        Raises:
            ExportError: an operator cannot be written.
        """
        if self._model is None:
            self._model = self._write() if self._file is None else self._file.message()
        if name == "qdq":
            return self._model
        return to_qoperator(self._model, self._target.types.activation.signed)

    def write(self, path: Path, name: str) -> None:
        """Write the model, unverified; its weights one after the other, into a data file.

        Args:
            path: path of the model.
            name: file name that the model will have; that of the data file begins with it.

        Raises:
            ExportError: an operator cannot be written.
            OSError: a file cannot be written.
        """
        model = self._write(partial(write_weights, folder=path.parent, name=name))
        write_atomic(path, model.SerializeToString())

    def _write(self, store: Callable[[ir.Model], None] = lambda _: None) -> onnx.ModelProto:
        form, used = self._target.file, runtime(self._target.runtime)
        known = (*ONNX_WORKAROUNDS, *(() if used is None else used.workarounds))

        def finish(model: ir.Model) -> None:
            if not form.transposed_weights:
                store_as_read(model)
            if form.plain_lookups:
                write_plain_lookups(model)
            store(model)

        return to_onnx(
            lower_to_qdq(self.simulation.module, self.simulation.plan, self._target),
            self.simulation.graph,
            max(form.opset, _OPSET_OF_16_BITS) if self._has_16_bits else form.opset,
            self._metadata,
            form.contrib,
            known,
            finish,
        )

    @property
    def _has_16_bits(self) -> bool:
        """Whether tensors have codes of 16 bits."""
        types = (getattr(p.spec, "qtype", None) for p in self.simulation.plan)
        return any(t in (INT16, UINT16) for t in types)

    @contextmanager
    def writing(
        self, path: Path, options: ExportOptions, sample: Batch, verify: bool
    ) -> Iterator[PlannedOnnx]:
        """See `Export`. The file carries a test of itself."""
        qdq = options.format == "qdq"
        self.model()
        self.simulation.trim_memory()  # intermediate graphs hold all codes twice
        with atomic_save(self.model(options.format), path, options.external_data) as temporary:
            exported = ExportedFile(temporary)
            if qdq and verify:  # the file as read replaces the model: one copy
                self._file, self._model = exported.file, None
                self.simulation.trim_memory()
            written = self.file(exported, sample)
            yield written
            written.file.close()
            few = self.simulation.graph.smaller(sample, SAMPLES)
            attach(temporary, make_self_test(written.file, few.arrays(), self.simulation.macs))

    def file(self, file: ExportedFile | str | Path, sample: Batch) -> PlannedOnnx:
        """Return a file of this model, with its QDQ form if it is in another one.

        Args:
            file: the file.
            sample: a batch for the comparison with other CPUs.
        """
        exported = ExportedFile.of(file)
        if is_qoperator(exported.file.outline):
            exported = ExportedFile(exported.path, qdq=self.model())
        return PlannedOnnx(self.simulation, exported, sample)

    @contextmanager
    def saved(self) -> Iterator[Path]:
        """Save the model in QDQ form to a temporary file."""
        with scratch_folder() as folder:
            path = folder / "model.onnx"
            save(self.model(), path)
            yield path

    def coverage(self) -> Coverage:
        """Return what the runtime runs in integers; what is planned where it does not run here."""
        plan = self.simulation.plan
        used, _ = find_runtime(self._target)
        if used is None:
            return planned_coverage(plan)
        if self._coverage is None:
            with self.saved() as path:
                self._coverage = measure_coverage(ExportedFile(path), plan, used)
        return self._coverage

    def program(self, profile: str | None = None) -> Program:
        """Return the integer program; see `Quantized.integer`."""
        default = None if runs_here(self._target) else self._target.profile
        return lower(self.model(), profile or default)


class PlannedOnnx:
    """An ONNX file of a quantized model; see `PlannedFile`."""

    def __init__(self, simulation: FakeQuantized, file: ExportedFile, sample: Batch) -> None:
        self.simulation, self.file, self.sample = simulation, file, sample
        self._used, self._missing = find_runtime(target(simulation.plan.target))

    def check(self, batch: Batch) -> Checked:
        """See `PlannedFile`."""
        checked = self.correctness(batch)
        sizes = compare_sizes(self.simulation, self.file, batch, self._used)
        if (names := varying_dimensions(self.simulation.graph)) and not sizes:
            checked = replace(checked, remarks=(_ONE_SIZE.format(", ".join(names)),))
        checked = replace(checked, other_sizes=sizes)
        if checked.exactness is None:
            return checked
        other = measure_portability(self.simulation, self.file, self.sample)
        outputs = self.file.run(batch.arrays())
        return replace(checked, outputs=outputs, portability=other, missing="")

    def takes(self, batch: Batch) -> bool:  # noqa: ARG002  # a protocol
        """See `PlannedFile`. An ONNX file has the dynamic sizes of its graph."""
        return True

    @property
    def place(self) -> str:
        """See `PlannedFile`."""
        if self._used is not None:
            return ""
        name = self.simulation.plan.target
        return f"ONNX Runtime {ONNXRUNTIME.version()} here, as written, not on {name}"

    def run(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """See `PlannedFile`."""
        # None: kernels of this CPU may round, and saturate, as that runtime does not
        return self.file.run_in(self._used, arrays)

    def correctness(self, batch: Batch) -> Checked:
        """See `PlannedFile`."""
        pair = check_correctness(self.simulation, self.file, batch, batch.arrays())
        coverage = measure_coverage(self.file, self.simulation.plan, self._used)
        return Checked(*pair, coverage, missing=self._missing)
