"""Outputs and codes of a file on other processors, compared with this machine."""

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
    Producer,
    code_tensors,
    float_kernels,
    hidden_kernels,
    producers_of,
)
from qtool.plugins.emulators.cpus import Cpu, Family
from qtool.plugins.emulators.equality_counts import Tally, changed_predictions, tallies
from qtool.plugins.emulators.jobs import Job, external_files, run_jobs, write_array
from qtool.plugins.emulators.model_forms import Form, int8_taken_for_uint8
from qtool.plugins.emulators.result import CpuResult, FirstDifference


@dataclass(frozen=True)
class Case:
    """A file and its batches in a scratch folder, with this machine's outputs.

    Attributes:
        folder: the scratch folder.
        plain: the file as it is, run here.
        coded: the file with its codes as further outputs, run here.
        forms: whether int8 codes are turned into uint8 -> the models.
        outputs: number of outputs of the file itself.
        samples: number of samples of each batch.
        makers: tensor of codes -> what computes it here.
        floats: float results of integer kernels.
        hidden: kernels with integers inside whose results cannot be compared.
        timeout: seconds for one processor.
    """

    folder: Path
    plain: Job
    coded: Job
    forms: Mapping[bool, Form]
    outputs: int
    samples: tuple[int, ...]
    producers: Mapping[str, Producer]
    floats: tuple[CodeTensor, ...]
    hidden: tuple[str, ...]
    timeout: float

    def form(self, cpu: Cpu | None) -> Form:
        """Return the models for a processor; None is this machine."""
        return self.forms[_lifts(cpu)]

    @property
    def codes(self) -> tuple[CodeTensor, ...]:
        return self.form(None).codes

    @property
    def place(self) -> Mapping[str, int]:
        """Output -> its index in `coded`."""
        return self.form(None).place

    @cached_property
    def forced(self) -> Job:
        """The job that runs every kernel on this machine's codes; run on first use."""
        outputs = new_folder(self.folder / "forced")
        job = self.form(None).forced(self.coded, self.floats, outputs)
        run_jobs(None, [job], self.folder / "forced-job", self.timeout)
        return job

    @property
    def all_kernels(self) -> tuple[CodeTensor, ...]:
        """Results of integer kernels of this machine: codes, and floats."""
        return (*self.integer, *self.floats)

    @property
    def integer(self) -> tuple[CodeTensor, ...]:
        """Codes that integer kernels of this machine give."""
        integer = {tensor for tensor, producer in self.producers.items() if producer.integer}
        return tuple(c for c in self.codes if c.tensor in integer)

    @cached_property
    def kernels(self) -> tuple[CodeTensor, ...]:
        """Integer kernels with the same results in `forced` as in the file, and those with float
        results."""
        indices = [self.place[c.tensor] for c in self.integer]
        same = tallies(self.coded.outputs, self.forced.outputs, self.coded.batches, indices)
        return (*(c for c in self.integer if same[self.place[c.tensor]].equal), *self.floats)

    def wrong(self, job: Job) -> tuple[CodeTensor, ...]:
        """Return the kernels with other results in a job like `forced` on another processor."""
        added = (c.tensor for c in self.floats if c.tensor not in self.place)
        indices = {**self.place, **{name: i for i, name in enumerate(added, len(self.place))}}
        compared = [indices[c.tensor] for c in self.kernels]
        counts = tallies(self.forced.outputs, job.outputs, job.batches, compared)
        results = ((c, counts[indices[c.tensor]]) for c in self.kernels)
        return tuple(c for c, t in results if not (t.near if c.dtype == "float32" else t.equal))


def prepare(file: Path, batches: Iterable[Sequence[Array]], folder: Path, timeout: float) -> Case:
    """Write models and inputs, and run them on this machine.

    Raises:
        DataError: there is no batch, or one holds text.
        EmulationError: a run fails, or takes longer than `timeout` seconds.
        FileError: not an ONNX file. VerificationError: this machine's runtime does not load it.
    """
    inputs = new_folder(folder / "inputs")
    samples = write_inputs(inputs, batches)
    model = load(file)
    codes, lifted = code_tensors(model), int8_taken_for_uint8(file)
    forms = {True: Form.of(folder / "models", model, codes, lifted)}
    plain_form = Form.of(folder / "arm", model, codes, frozenset()) if lifted else forms[True]
    forms[False] = plain_form
    here = forms[_lifts(None)]
    executed = optimised_graph(here.path)
    count = len(samples)
    named = external_files(file)
    plain = Job(file.absolute(), inputs, new_folder(folder / "plain"), count, named)
    coded = here.coded(inputs, new_folder(folder / "coded"), count)
    run_jobs(None, [plain, coded], folder / "job", timeout)
    floats = float_kernels(executed, model, codes)
    return Case(
        *(folder, plain, coded, forms, len(model.graph.output), samples),
        *(producers_of(executed, codes), floats, hidden_kernels(executed, floats), timeout),
    )


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


TIMEOUT = 600.0
"""Seconds for one processor."""


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
        case = prepare(Path(file), batches, folder, timeout)
        for cpu in cpus:
            place = folder / cpu.name
            try:
                yield _compared(case, cpu, place)
            finally:
                shutil.rmtree(place, ignore_errors=True)


def _compared(case: Case, cpu: Cpu, place: Path) -> CpuResult:
    plain = replace(case.plain, outputs=new_folder(place / "plain"))
    coded = case.form(cpu).coded(plain.inputs, new_folder(place / "coded"), plain.batches)
    runtime = run_jobs(cpu, [plain, coded], place / "job", case.timeout)
    own = range(case.outputs)
    outputs = tallies(case.plain.outputs, plain.outputs, plain.batches, own)
    codes = _codes(case, case.coded, coded)
    classes = changed_predictions(case.plain.outputs, plain.outputs, case.samples)
    first = _first(case, codes)
    same_outputs = all(t.equal for t in outputs.values())
    needed = first is not None or (case.floats and not same_outputs)
    kernels, wrong = _compare_kernels(case, cpu, place) if needed else (case.all_kernels, ())
    undisturbed = all(
        tally.equal
        for one, other in ((case.plain, case.coded), (plain, coded))
        for tally in tallies(one.outputs, other.outputs, one.batches, own).values()
    )
    return CpuResult(
        cpu=cpu.name,
        runtime=runtime,
        outputs=sum(t.total for t in outputs.values()),
        outputs_identical=sum(t.identical for t in outputs.values()),
        codes=sum(t.total for t in codes.values()),
        codes_identical=sum(t.identical for t in codes.values()),
        sqnr_db=min((db for t in outputs.values() if (db := t.sqnr_db) is not None), default=None),
        predictions=None if classes is None else classes[0],
        changed=None if classes is None else classes[1],
        first=first,
        kernels=len(kernels),
        wrong_kernels=tuple(f"{c.node} ({c.op})" for c in wrong),
        hidden=case.hidden,
        undisturbed=undisturbed,
    )


def _codes(case: Case, here: Job, there: Job) -> dict[str, Tally]:
    """Return tensor of codes -> its count, in the order of the graph."""
    indices = [case.place[c.tensor] for c in case.codes]
    counts = tallies(here.outputs, there.outputs, here.batches, indices)
    return {c.tensor: counts[case.place[c.tensor]] for c in case.codes}


def _first(case: Case, codes: dict[str, Tally]) -> FirstDifference | None:
    code = next((c for c in case.codes if not codes[c.tensor].equal), None)
    if code is None:
        return None
    maker = case.producers.get(code.tensor)
    return FirstDifference(
        code.node, code.op, code.tensor, () if maker is None else maker.float_nodes
    )


def _compare_kernels(
    case: Case, cpu: Cpu, place: Path
) -> tuple[tuple[CodeTensor, ...], tuple[CodeTensor, ...]]:
    """Return the integer kernels that ran on this machine's codes, and those with other results."""
    job = case.form(cpu).forced(case.coded, case.floats, new_folder(place / "forced"))
    run_jobs(cpu, [job], place / "forced-job", case.timeout)
    return case.kernels, case.wrong(job)
