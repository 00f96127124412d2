"""Outputs and codes of a file on other processors, compared with this machine.

On each processor the file runs as it is, and once with each kernel on the codes that it reads here:
what differs then is the difference of that kernel alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from qtool.backends.onnx.storage import load
from qtool.backends.onnxruntime.session import optimised_graph
from qtool.core.atomic import scratch_folder
from qtool.core.errors import DataError
from qtool.core.remedies import DataEdit
from qtool.core.types import Array
from qtool.plugins.emulators.available import machine_type
from qtool.plugins.emulators.code_probes import (
    CodeTensor,
    Probes,
    code_tensors,
)
from qtool.plugins.emulators.cpus import Cpu, Family
from qtool.plugins.emulators.equality_counts import Tally, changed_predictions, tallies
from qtool.plugins.emulators.jobs import Job, run_jobs, write_array
from qtool.plugins.emulators.model_forms import Form, int8_taken_for_uint8
from qtool.plugins.emulators.result import CpuResult, FirstDifference

TIMEOUT = 600.0
"""Seconds for one processor."""


@dataclass(frozen=True)
class Case:
    """A file and its batches in a scratch folder, with this machine's outputs.

    Attributes:
        plain: the file as it is.
        coded: the file with its codes as further outputs.
        forced: the same, with each kernel on the codes of `coded`.
        forms: whether int8 codes are turned into uint8 -> the models.
        outputs: number of outputs of the file itself.
        samples: number of samples of each batch.
        probes: what is compared of it.
    """

    plain: Job
    coded: Job
    forced: Job
    forms: Mapping[bool, Form]
    outputs: int
    samples: tuple[int, ...]
    probes: Probes

    @cached_property
    def place(self) -> Mapping[str, int]:
        """Output of `forced`, which begins with those of `coded` -> its index."""
        place = self.forms[_lifts(None)].place
        added = (c.tensor for c in self.probes.floats if c.tensor not in place)
        return {**place, **{name: i for i, name in enumerate(added, len(place))}}

    def compare(
        self, here: Job, there: Job, tensors: Iterable[CodeTensor]
    ) -> dict[CodeTensor, Tally]:
        """Return tensor -> its count, in order, of two jobs with codes."""
        indices = {c: self.place[c.tensor] for c in tensors}
        counts = tallies(here.outputs, there.outputs, here.batches, indices.values())
        return {c: counts[i] for c, i in indices.items()}

    def same_outputs(self, here: Job, there: Job) -> bool:
        """Return whether the outputs of the file itself are identical in two jobs."""
        counts = tallies(here.outputs, there.outputs, here.batches, range(self.outputs))
        return all(tally.equal for tally in counts.values())

    @cached_property
    def kernels(self) -> tuple[CodeTensor, ...]:
        """Integer kernels with the same results in `forced` as in the file, and those with float
        results."""
        integer = [c for c in self.probes.codes if self.probes.float_nodes.get(c.tensor) == ()]
        same = self.compare(self.coded, self.forced, integer)
        return (*(c for c in integer if same[c].equal), *self.probes.floats)

    def undisturbed(self, plain: Job, forced: Job) -> bool:
        """Return whether the outputs of the file stay the same when it returns its codes, here, and
        reads codes, in two jobs of a processor with the codes of this machine."""
        follow = self.same_outputs(self.plain, self.forced)
        same = self.same_outputs(self.plain, self.coded)
        return same and (not follow or self.same_outputs(plain, forced))


def prepare(file: Path, batches: Iterable[Sequence[Array]], folder: Path) -> Case:
    """Write models and inputs to an empty folder, and run them on this machine.

    Raises:
        DataError: there is no batch, or one holds text.
        FileError: not an ONNX file. VerificationError: this machine's runtime does not load it.
    """
    inputs = new_folder(folder / "inputs")
    samples = write_inputs(inputs, batches)
    model = load(file)
    codes, lifted = code_tensors(model), int8_taken_for_uint8(file)
    forms = {True: Form.of(folder / "models", model, codes, lifted)}
    forms[False] = Form.of(folder / "arm", model, codes, frozenset()) if lifted else forms[True]
    here = forms[_lifts(None)]
    probes = Probes.of(model, codes, optimised_graph(here.path))
    plain = Job(file.absolute(), inputs, new_folder(folder / "plain"), len(samples))
    coded = replace(plain, model=here.path, outputs=new_folder(folder / "coded"))
    run_jobs(None, [plain, coded], folder, 0)
    forced = here.forced(coded, probes.floats, new_folder(folder / "forced"))
    run_jobs(None, [forced], folder, 0)
    return Case(plain, coded, forced, forms, len(model.graph.output), samples, probes)


def new_folder(folder: Path) -> Path:
    """Make a folder, and return it."""
    folder.mkdir(parents=True)
    return folder


def write_inputs(folder: Path, batches: Iterable[Sequence[Array]]) -> tuple[int, ...]:
    """Write the batches, and return the number of samples of each.

    Raises:
        DataError: there is no batch, or one holds text.
    """
    samples = []
    for index, batch in enumerate(batches):
        for i, array in enumerate(batch):
            if array.dtype.kind not in "fiub":
                kind = array.dtype
                raise DataError(f"batch {index} holds {kind}; only numbers can be emulated")
            write_array(folder, index, i, array)
        samples.append(next((a.shape[0] for a in batch if a.ndim), 1))
    if not samples:
        raise DataError("the data is empty", DataEdit("give at least one batch"))
    return tuple(samples)


def _lifts(cpu: Cpu | None) -> bool:
    """Return whether the runtime turns int8 codes into uint8 there: everywhere but on ARM."""
    return machine_type() != "aarch64" if cpu is None else cpu.family is not Family.ARM


def run_on_cpus(
    file: str | Path,
    cpus: Iterable[Cpu],
    batches: Iterable[Sequence[Array]],
    timeout: float = TIMEOUT,
) -> Iterator[CpuResult]:
    """Run a file on this machine and on other processors; yield one result after another.

    Args:
        file: an ONNX file of any tool.
        cpus: rows of the table.
        batches: arrays in the order of the file's inputs.
        timeout: seconds for each processor.

    Raises:
        DataError: there is no batch, or one holds text.
        EmulationError: a processor cannot be emulated, or its emulation fails or takes too long.
        FileError: not an ONNX file. VerificationError: this machine's runtime does not load it.
    """
    with scratch_folder() as folder:
        case = prepare(Path(file), batches, folder)
        for cpu in cpus:
            place = folder / cpu.name
            try:
                yield _compared(case, cpu, place, timeout)
            finally:
                shutil.rmtree(place, ignore_errors=True)


def _compared(case: Case, cpu: Cpu, place: Path, timeout: float) -> CpuResult:
    plain, probes = replace(case.plain, outputs=new_folder(place / "plain")), case.probes
    form = case.forms[_lifts(cpu)]
    forced = form.forced(case.coded, probes.floats, new_folder(place / "forced"))
    runtime = run_jobs(cpu, [plain, forced], place / "job", timeout)
    folders = case.plain.outputs, plain.outputs
    outputs = tallies(*folders, plain.batches, range(case.outputs)).values()
    codes = case.compare(case.forced, forced, probes.codes)
    first = next((c for c, tally in codes.items() if not tally.equal), None)
    kernels = case.compare(case.forced, forced, case.kernels)
    wrong = [c for c, t in kernels.items() if not (t.near if c.dtype == "float32" else t.equal)]
    classes = changed_predictions(*folders, case.samples) or (None, None)
    return CpuResult(
        cpu=cpu.name,
        runtime=runtime,
        outputs=sum(t.total for t in outputs),
        outputs_identical=sum(t.identical for t in outputs),
        codes=sum(t.total for t in codes.values()),
        codes_identical=sum(t.identical for t in codes.values()),
        sqnr_db=min((db for t in outputs if (db := t.sqnr_db) is not None), default=None),
        predictions=classes[0],
        changed=classes[1],
        first=None if first is None else _difference(first, probes.float_nodes),
        kernels=len(kernels),
        wrong_kernels=tuple(f"{c.node} ({c.op})" for c in wrong),
        hidden=probes.hidden,
        undisturbed=first is not None or bool(wrong) or case.undisturbed(plain, forced),
    )


def _difference(code: CodeTensor, ahead: Mapping[str, tuple[str, ...]]) -> FirstDifference:
    return FirstDifference(code.node, code.op, code.tensor, ahead.get(code.tensor, ()))
