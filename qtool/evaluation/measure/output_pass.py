"""One pass over data and files: every file runs on each batch, a few numbers per sample are kept.

The outputs themselves are not kept, but for those of the float model where other files are measured
on the same data later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qtool.backends.formats import open_file, open_like, open_model
from qtool.backends.session import FLOATS, PortInfo, Session, fit_channels, positions
from qtool.core.errors import DataError
from qtool.core.option_names import NATIVE
from qtool.core.output_evidence import Evidence
from qtool.core.remedies import DataEdit, OtherFile
from qtool.core.types import Array
from qtool.evaluation.feeder import Arrays
from qtool.evaluation.language_model import find_language_model
from qtool.evaluation.measure.output_reader import OutputReader, Ranges
from qtool.metrics.compared_batches import ComparedBatches
from qtool.metrics.output_agreement import OutputAgreement
from qtool.metrics.sample_statistics import SampleStatistics

_KINDS = {"f": "number", "V": "number", "i": "whole", "u": "whole", "b": "whole"} | dict.fromkeys(
    "OSUT", "text"
)
"""Kind of an array's type -> what its values are; V is bfloat16."""


class OutputTypeError(DataError):
    """Outputs of a file are of another kind than those of the float file."""


class Reference:
    """The float file of a pass, and of later ones on the same data.

    Attributes:
        file: the float model.
        runtime: what runs it and the files that are compared with it, see `open_model`.
        session: the file in that.
    """

    def __init__(self, file: Path, runtime: str = NATIVE, limit: int = 0) -> None:
        """
        Args:
            file, runtime: as the attributes.
            limit: bytes of outputs to keep; batches beyond it run again in each pass.
        """
        self.file, self.runtime = file, runtime
        self.session = open_model(file, runtime=runtime)
        self._compared = list[Path]()
        self._limit, self._bytes = limit, 0
        self._reader: OutputReader | None = None
        self._outputs: list[Arrays] = []

    @property
    def reader(self) -> OutputReader:
        """What reads outputs; what they are was decided on the first batch."""
        assert self._reader is not None
        return self._reader

    def compare_with(self, files: Sequence[Path]) -> None:
        """Take what files of qtool record of the outputs as evidence for what they are."""
        self._compared += files

    def outputs(self, index: int, arrays: Arrays) -> Arrays:
        """Return the outputs for a batch, zero at padded positions."""
        if index < len(self._outputs):
            return self._outputs[index]
        outputs = self.session.run(arrays)
        if self._reader is None:
            model = find_language_model(self.session, arrays)
            evidence = _evidence(self.file, self._compared)
            self._reader = OutputReader.of(self.session, model, evidence, outputs)
        outputs = self._reader.padding.strip(arrays, outputs)
        self._bytes += sum(a.nbytes for a in outputs)
        if index == len(self._outputs) and self._bytes <= self._limit:
            self._outputs.append(outputs)
        return outputs


@dataclass(frozen=True)
class Agreements:
    """What each output of each file agrees with the float file in; nothing of the float file.

    Attributes:
        files: per file.
        left: outputs whose number of rows depends on values, which are not compared.
    """

    files: tuple[tuple[OutputAgreement, ...], ...] = ()
    left: tuple[str, ...] = ()


class Yardsticks:
    """What every file agrees with the float file in, on the outputs of a pass."""

    def __init__(self) -> None:
        self._files, self._states = list[ComparedBatches](), frozenset[str]()

    def add(self, reader: OutputReader, outputs: Sequence[Arrays]) -> None:
        """Take the outputs of every file for a batch."""
        first, *others = outputs
        if not self._files:
            self._files = [ComparedBatches(reader.names, reader.evidence) for _ in others]
            known = reader.evidence.items()
            self._states = frozenset(name for name, each in known if each.is_state_alone)
        size = len(first[0]) if first[0].ndim else 1
        for file, own in zip(self._files, others, strict=True):
            file.add(first, own, size)

    def agreements(self) -> Agreements:
        """Return those of each file."""
        left = tuple(self._files[0].left) if self._files else ()
        return Agreements(((), *map(self._judged, self._files)), left)

    def _judged(self, file: ComparedBatches) -> tuple[OutputAgreement, ...]:
        """Return those of a file: of no state, which the outputs that read it judge, unless there
        is nothing else."""
        every = file.agreements()
        return tuple(each for each in every if each.output not in self._states) or every


class FirstBatches:
    """The first batches of a pass, for measurements that take no more."""

    def __init__(self, samples: int, inputs: Sequence[PortInfo]) -> None:
        """
        Args:
            samples: batches are kept until they have as many, at least one.
            inputs: inputs of the files.
        """
        self._wanted, self._samples, self.inputs = samples, 0, inputs
        self._batches: list[Arrays] = []

    def add(self, arrays: Arrays) -> None:
        if self._samples < self._wanted or not self._batches:
            self._batches.append(arrays)
            self._samples += next((len(a) for a in arrays if a.ndim), 1)

    def joined(self, samples: int) -> Arrays:
        """Return the first batches of equal shapes as one, until they have a number of samples; the
        first alone if the files have a fixed batch size."""
        parts = self._of_equal_shapes(samples)
        fixed = any(i.shape and isinstance(i.shape[0], int) for i in self.inputs)
        if fixed or not parts[0][0].ndim:
            return parts[0]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

    def heads(self, file: Path, samples: int) -> Iterator[Arrays]:
        """Yield the first samples of batches of equal shapes, in the order of a file's inputs and
        with the channels of images where it has them.

        Batches stay as they are: with cached tokens, attention kernels take one text at a time.
        """
        ports = open_model(file).inputs
        order = positions(ports, self.inputs)
        for part in self._of_equal_shapes(samples):
            taken = [part[at] for at in order]
            fitted = [fit_channels(a, i.shape) for a, i in zip(taken, ports, strict=True)]
            yield [a[:samples] if a.ndim else a for a in fitted]
            samples -= len(part[0]) if part[0].ndim else samples
            if samples <= 0:
                return

    def by_name(self) -> list[dict[str, Array]]:
        """Return the batches by the names of the inputs."""
        names = [i.name for i in self.inputs]
        return [dict(zip(names, arrays, strict=True)) for arrays in self._batches]

    def _of_equal_shapes(self, samples: int) -> list[Arrays]:
        parts: list[Arrays] = []
        for arrays in self._batches:
            if parts and [a.shape[1:] for a in arrays] != [a.shape[1:] for a in parts[0]]:
                break
            parts.append(arrays)
            if not arrays[0].ndim or sum(len(p[0]) for p in parts) >= samples:
                break
        return parts


def measure_arrays(
    reference: Reference,
    files: Sequence[Path],
    data: Iterable[Arrays],
    *,
    first: FirstBatches | None = None,
    watch: Callable[[Arrays, Sequence[Arrays]], None] = lambda _, __: None,
    yardsticks: Yardsticks | None = None,
) -> SampleStatistics:
    """Run every file on every batch, with default session options; padded positions are ignored.

    Args:
        reference: the first file, with outputs of earlier passes.
        files: models with the same inputs and outputs, which are compared with it.
        data: batches, arrays in the order of the inputs.
        first: receives the first batches.
        watch: receives the inputs of each batch and the outputs of every file.
        yardsticks: receives the outputs, too.

    Raises:
        DataError: no data, or data that does not fit.
        OutputTypeError: a file has codes or text where the first one has numbers, or vice versa.
        VerificationError: a file does not run.
    """
    sessions = [open_like(reference.session, f, runtime=reference.runtime) for f in files]
    reference.compare_with(files)
    ranges = [_ranges(f, reference.session) for f in (reference.file, *files)]
    parts: list[SampleStatistics] = []
    for index, arrays in enumerate(data):
        if first is not None:
            first.add(arrays)
        expected = reference.outputs(index, arrays)
        reader = reference.reader
        own = [_like(expected, s.run(arrays)) for s in sessions]
        for file, outputs in zip(files, own, strict=True):
            _check_types(file, reference.file, reader.names, expected, outputs)
        others = [reader.padding.strip(arrays, outputs) for outputs in own]
        watch(arrays, [expected, *others])
        if yardsticks is not None:
            yardsticks.add(reader, [expected, *others])
        parts.append(reader.read(arrays, [expected, *others], ranges))
    if not parts:
        raise DataError("the evaluation data is empty", DataEdit("give at least one batch"))
    return SampleStatistics.joined(parts)


def _evidence(file: Path, compared: Sequence[Path]) -> dict[str, Evidence]:
    """Return what is known of each output of the float file, by itself and by files made from it:
    the user's labels at the conversion, and what the recipe calls an output."""
    conversions = (open_file(each).conversion() for each in compared)
    infos = [each.info for each in conversions if each is not None]
    labels = max((info.labels for info in infos), default=0)
    kinds = {name: kind for info in infos for name, kind in info.recipe.output_kinds.items()}
    known = open_file(file).output_evidence()
    return {n: e._replace(labels=labels, kind=kinds.get(n, "")) for n, e in known.items()}


def _ranges(file: Path, reference: Session) -> Ranges:
    """Return the ranges of the float inputs of a file, whose inputs are those of the reference."""
    known = open_file(file).input_ranges()
    names = [port.name for port in open_like(reference, file).inputs] if known else []
    return {
        i: known[name]
        for i, (name, port) in enumerate(zip(names, reference.inputs, strict=False))
        if name in known and port.type in FLOATS
    }


def _like(expected: Arrays, outputs: Arrays) -> Arrays:
    """Return outputs with the channels of images where the first file has them."""
    return [fit_channels(o, e.shape) for e, o in zip(expected, outputs, strict=True)]


def _check_types(
    file: Path, first: Path, names: Sequence[str], expected: Arrays, outputs: Arrays
) -> None:
    for name, real, other in zip(names, expected, outputs, strict=True):
        if _KINDS[real.dtype.kind] != _KINDS[other.dtype.kind]:
            raise OutputTypeError(
                f"output '{name}' of {file.name} is {other.dtype}, that of {first.name} "
                f"{real.dtype}, so they cannot be compared",
                OtherFile("give a file with the output dequantized"),
            )
