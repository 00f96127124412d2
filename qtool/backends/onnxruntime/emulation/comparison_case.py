"""A file prepared for comparison: models, inputs, and the results of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from qtool.backends.onnx.storage import load
from qtool.backends.onnxruntime.emulation.available import machine_type
from qtool.backends.onnxruntime.emulation.code_probes import CodeTensor, code_tensors
from qtool.backends.onnxruntime.emulation.cpus import Cpu, Family
from qtool.backends.onnxruntime.emulation.equality_counts import tallies
from qtool.backends.onnxruntime.emulation.executed_kernels import (
    Producer,
    float_kernels,
    hidden_kernels,
    producers_of,
)
from qtool.backends.onnxruntime.emulation.jobs import Job, external_files, run_jobs, write_array
from qtool.backends.onnxruntime.emulation.model_forms import Form, int8_taken_for_uint8
from qtool.backends.onnxruntime.session import optimised_graph
from qtool.core.errors import DataError
from qtool.core.types import Array


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
    samples = _write_inputs(inputs, batches)
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


def _write_inputs(folder: Path, batches: Iterable[Sequence[Array]]) -> tuple[int, ...]:
    """Write the batches, and return the number of samples of each."""
    samples = []
    for index, batch in enumerate(batches):
        for i, array in enumerate(batch):
            if array.dtype.kind not in "fiub":
                kind = array.dtype
                raise DataError(f"batch {index} holds {kind}; only numbers can be emulated")
            write_array(folder, index, i, array)
        samples.append(next((a.shape[0] for a in batch if a.ndim), 1))
    if not samples:
        raise DataError("the data is empty; give at least one batch")
    return tuple(samples)


def _lifts(cpu: Cpu | None) -> bool:
    """Return whether the runtime turns int8 codes into uint8 there: everywhere but on ARM."""
    return machine_type() != "aarch64" if cpu is None else cpu.family is not Family.ARM
