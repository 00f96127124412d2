"""A file laid down for comparison: models, inputs, and what this machine makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from qtool.emulation.jobs import Job, link_array, read_array, run_jobs, write_batch
from qtool.emulation.probes import (
    Code,
    Maker,
    Shapes,
    codes_of,
    hidden_kernels,
    makers_of,
    with_given_codes,
    with_outputs,
)
from qtool.emulation.tally import tallies
from qtool.errors import DataError
from qtool.onnx_graph.storage import files_of, load, save
from qtool.runtimes.onnxruntime import optimised_graph
from qtool.types import Array

__all__ = ["Case", "Forced", "elsewhere", "prepare"]


@dataclass(frozen=True)
class Forced:
    """A model whose every kernel reads codes of this machine; see `with_given_codes`.

    Attributes:
        job: the model, and its outputs here.
        kernels: integer kernels whose codes are those that the file itself gives here.
    """

    job: Job
    kernels: tuple[Code, ...]


@dataclass(frozen=True)
class Case:
    """A file and its batches in a scratch folder, with this machine's outputs.

    Attributes:
        folder: the scratch folder.
        plain: the file as it is.
        coded: the file with its codes as further outputs.
        asked: the model of `coded`.
        codes: all tensors of codes, in the order of the graph.
        place: output -> its index in `coded`.
        outputs: how many outputs the file itself has.
        samples: of each batch.
        makers: tensor of codes -> what computes it here.
        hidden: kernels whose codes cannot be asked for.
        timeout: seconds for one processor.
    """

    folder: Path
    plain: Job
    coded: Job
    asked: onnx.ModelProto
    codes: tuple[Code, ...]
    place: Mapping[str, int]
    outputs: int
    samples: tuple[int, ...]
    makers: Mapping[str, Maker]
    hidden: tuple[str, ...]
    timeout: float

    @cached_property
    def forced(self) -> Forced:
        """Made and run on this machine when a processor first gives other codes."""
        names = [c.tensor for c in self.codes]
        known = {n: _shapes(self.coded, self.place[n]) for n in names}
        model, given = with_given_codes(self.asked, known)
        path, inputs = self.folder / "forced.onnx", _new(self.folder / "forced-inputs")
        save(model, path)
        first = len(list(self.coded.inputs.glob("0-*.npy")))
        for batch in range(self.coded.batches):
            for i in range(first):
                link_array(self.coded.inputs, inputs, batch, i, i)
            for i, name in enumerate(given, first):
                link_array(self.coded.outputs, inputs, batch, self.place[name], i)
        job = _job(path, inputs, _new(self.folder / "forced"), self.coded.batches)
        run_jobs(None, [job], self.folder / "forced-job", self.timeout)
        return Forced(job, self._comparable(job))

    def _comparable(self, job: Job) -> tuple[Code, ...]:
        """Integer kernels that compute here as they do in the file itself."""
        indices = [self.place[c.tensor] for c in self.codes]
        same = tallies(self.coded.outputs, job.outputs, job.batches, indices)
        return tuple(
            c
            for c in self.codes
            if c.tensor in self.makers
            and self.makers[c.tensor].integer
            and same[self.place[c.tensor]].equal
        )


def prepare(
    file: Path, batches: Iterable[Sequence[Array]], folder: Path, timeout: float
) -> Case:
    """Write models and inputs, and run them on this machine.

    Raises:
        DataError: there is no batch, or one holds text.
        EmulationError: a run fails, or takes longer than `timeout` seconds.
        FileError: not an ONNX file. VerificationError: this machine's runtime does not load it.
    """
    inputs, samples = _new(folder / "inputs"), []
    for index, batch in enumerate(batches):
        write_batch(inputs, index, batch)
        samples.append(next((a.shape[0] for a in batch if a.ndim), 1))
    if not samples:
        raise DataError("the data is empty; give at least one batch")
    model = load(file)
    codes = codes_of(model)
    asked, path = with_outputs(model, codes), folder / "codes.onnx"
    save(asked, path)
    executed = optimised_graph(path)
    plain, coded = (
        _job(source, inputs, _new(folder / name), len(samples))
        for source, name in ((file, "plain"), (path, "coded"))
    )
    run_jobs(None, [plain, coded], folder / "here", timeout)
    place = {o.name: i for i, o in enumerate(asked.graph.output)}
    makers, hidden = makers_of(executed, codes), hidden_kernels(executed)
    count = len(model.graph.output)
    return Case(
        *(folder, plain, coded, asked, codes, place, count),
        *(tuple(samples), makers, hidden, timeout),
    )


def elsewhere(job: Job, outputs: Path) -> Job:
    """The same job with outputs in another folder, which is made."""
    return Job(job.model, job.inputs, _new(outputs), job.batches, job.external)


def _job(model: Path, inputs: Path, outputs: Path, batches: int) -> Job:
    named = {str(f.relative_to(model.parent)): f.resolve() for f in files_of(model)[1:]}
    return Job(model.absolute(), inputs, outputs, batches, named)


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _shapes(job: Job, index: int) -> Shapes:
    arrays = [read_array(job.outputs, batch, index) for batch in range(job.batches)]
    return Shapes(arrays[0].dtype, tuple(a.shape for a in arrays))
