"""One pass of both files of a gate over the samples: what the metric and the checks need of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.formats import open_file, open_like
from qtool.core.errors import DataError
from qtool.core.output_evidence import Evidence
from qtool.evaluation.feeder import Arrays
from qtool.evaluation.gate.data_checks import ConstantOutput, DataChecks
from qtool.evaluation.gate.inputs import Digest, fitting_batches
from qtool.evaluation.gate.options import GateOptions
from qtool.evaluation.gate.result import GateCheck, Outcome
from qtool.evaluation.measure.output_pass import OutputTypeError, Reference, measure_arrays
from qtool.metrics.named_metrics import GateMetric, Samples
from qtool.metrics.sample_statistics import check_finite
from qtool.metrics.vector_output import VectorOutput


class FilePass:
    """One pass of both files over the data, and what it sees on the way.

    Attributes:
        reference: the float file.
    """

    def __init__(
        self, metric: GateMetric, reference: Reference, file: Path, options: GateOptions
    ) -> None:
        self.reference = reference
        self.digest = Digest()
        self._opened, self._runtime = open_file(file), options.runtime
        session = reference.session
        self._vectors = VectorOutput.of([o.name for o in session.outputs], options.pooling)
        self._is_pooled = False
        self._data = DataChecks([i.name for i in session.inputs], self._opened.input_ranges())
        self._metric = metric
        self._kept: list[tuple[Any, Any]] = []
        self._constant = ConstantOutput()

    def run(self, files: Sequence[Path], data: Iterable[Arrays]) -> Samples:
        """Return what the metric needs of all samples.

        Raises:
            BatchSizeError: FILE has a fixed number of samples, and a batch another one.
        """
        if not self._opened.takes_one_sample:
            like = self.reference.session
            inputs = open_like(like, files[1], runtime=self._runtime).inputs
            data = fitting_batches(data, inputs, files[1].name)
        measured = measure_arrays(self.reference, files[1:], data, watch=self._watch)
        real, other = (_joined(each) for each in zip(*self._kept, strict=True))
        has_mask = self.reference.reader.padding.mask is not None
        reader = self.reference.reader
        evidence = reader.evidence.get(reader.names[0], Evidence())
        return Samples(measured, (real, other), self._vectors, self._is_pooled, has_mask, evidence)

    def _watch(self, arrays: Arrays, outputs: Sequence[Arrays]) -> None:
        self._data.add(arrays)
        self.digest.add(arrays)
        shapes = [[list(o.shape) for o in own] for own in outputs]
        if shapes[0] != shapes[1]:
            raise OutputTypeError(f"outputs {shapes[1]}, those of the float file {shapes[0]}")
        self._constant.add(outputs)
        if self._metric.labels == "":  # it compares both files, where rows may be a set
            _, outputs = self.reference.reader.compared(outputs)
        tokens = self.reference.reader.scores_tokens
        keep = self._metric.keep_of_tokens if tokens else self._metric.keep
        self._is_pooled = outputs[0][self._vectors.index].ndim == 3
        self._kept.append((keep(outputs[0], self._vectors), keep(outputs[1], self._vectors)))

    def checks(self, samples: Samples) -> list[GateCheck]:
        """Return what the samples themselves say of both files."""
        known = samples.statistics
        try:
            check_finite(known)
        except DataError as error:
            return [GateCheck("samples", Outcome.NOT_COMPARABLE, str(error))]
        broken = int(((known.not_finite[1] > 0) & (known.not_finite[0] == 0)).sum())
        if not broken:
            name = self.reference.session.outputs[0].name
            return [*self._data.checks(), *self._constant.checks(name, known.samples)]
        text = f"NaN or Inf on {broken} of {known.samples} samples, where the float file has none"
        return [GateCheck("outputs", Outcome.REGRESSION, text), *self._data.checks()]


def _joined(parts: Sequence[Any]) -> Any:
    """Return the arrays of all batches as one, shorter ones padded: floats with 0, others with
    -1."""
    if isinstance(parts[0], tuple):
        return tuple(_joined(each) for each in zip(*parts, strict=True))
    shape = np.max([part.shape[1:] for part in parts], axis=0).astype(int)
    fill = 0 if parts[0].dtype.kind == "f" else -1
    padded = [
        np.pad(
            part,
            [(0, 0), *((0, n - m) for n, m in zip(shape, part.shape[1:], strict=True))],
            constant_values=fill,
        )
        for part in parts
    ]
    return np.concatenate(padded)
