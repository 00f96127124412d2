"""A quantized model as a file: written, verified, timed, measured on data, and judged by goals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import ArrayLike

from qtool.api.quantized_model import QuantizedModel
from qtool.backends.formats import ONNX, format_of, open_file
from qtool.core.argument_names import argument
from qtool.core.atomic import scratch_folder
from qtool.core.conversion_options import FileOptions
from qtool.core.data import whole_texts
from qtool.core.errors import DataError, QtoolError, VerificationError
from qtool.core.frame_columns import in_column_order, split_labels
from qtool.core.graph import FloatGraph
from qtool.core.on_use import OnUse
from qtool.core.option_names import file_format
from qtool.core.progress import length_of, stage, track_task
from qtool.core.summary import Result, Summary
from qtool.evaluation.baseline import Baseline
from qtool.evaluation.float_operators import float_row
from qtool.evaluation.latency.interleaved_timing import FLOAT
from qtool.evaluation.speedup import Speedup, measure_speedup, untimed_reason
from qtool.evaluation.summary_rows import accuracy_rows, growth_warning, size_row
from qtool.metrics.metric import Metric
from qtool.metrics.output_errors import finite_or_inf
from qtool.planning.plan import QuantPlan, plan_title
from qtool.verification import Verification

if TYPE_CHECKING:
    from qtool.blockwise.checkpoint import BlockRecord
    from qtool.evaluation.measure.accuracy import Accuracy

# a file is not always measured, nor made of blocks
_check_evaluation_data = OnUse("qtool.api.evaluation_check:check_evaluation_data")
_evaluation_in_errors = OnUse("qtool.api.evaluation_check:evaluation_in_errors")
_measure_accuracy = OnUse("qtool.api.captured_source:measure_accuracy")
_blocks_table = OnUse("qtool.blockwise.converted_blocks:blocks_table")
_AFTER_ACCURACY = ("integer", "float", "weights", "verified")  # rows of a summary


@dataclass(frozen=True)
class EvaluationData:
    """Data to measure the accuracy of a new file on.

    Attributes:
        batches: any iterable of batches.
        labels: [samples] class numbers, or numbers to predict, of the shape of the first output, or
            the name of a column of a DataFrame; None if there are none.
        kind: "evaluation" or, if the model was calibrated on it, "calibration".
    """

    batches: Iterable[Any]
    labels: ArrayLike | None = None
    kind: str = "evaluation"

    def __post_init__(self) -> None:
        batches, labels = split_labels(self.batches, self.labels)
        object.__setattr__(self, "batches", batches)
        object.__setattr__(self, "labels", labels)

    def check(self, model: Any, data: Iterable[Any] | None) -> None:
        """Check before the work that labels and batches fit a model; see `check_evaluation_data`.

        Args:
            model: as for `quantize`.
            data: what it is calibrated on; None without.

        Raises:
            DataError, CaptureError: they do not.
        """
        other = None if self.kind == "calibration" else data
        _check_evaluation_data(model, other, self.batches, self.labels)


@dataclass(frozen=True)
class QuantizedFile(Result):
    """A file that was written, and what was measured on it.

    Attributes:
        path: path of the file.
        model: the quantized model that it was written from; None where that was converted block by
            block and never in memory.
        plan: what its layers compute in.
        notes: sentences for the user on the conversion.
        verification: its checks, coverage and SQNR.
        size_bytes: size of the file and of its external data.
        float_size_bytes: size of the float model's file; of a torch model, of its ONNX file, and
            in a block-wise conversion of its float32 weights.
        speed: comparison with the float model; null if it was not timed.
        untimed: why it was not timed; "" where it was, or nothing was asked for.
        accuracy: metrics and agreement on the evaluation data; None without. Of a file of blocks
            whose float model does not fit into memory next to it, its own metrics alone.
        unmeasured: why there is no accuracy, or not that of the float model; "" where there is, or
            nothing was asked for.
        data_kind: see `EvaluationData.kind`.
        missed: goal -> a sentence if the file misses it, else "".
        kept: files of a model folder that stayed as they were, since they differ from the model's.
        blocks: records of a block-wise conversion, in order.
    """

    JSON_NAMES: ClassVar[tuple[str, ...]] = (
        "size_bytes",
        "target",
        "mode",
        "speed",
        "min_coverage_met",
        "min_sqnr_met",
        "metrics",
        "float_size_bytes",
    )

    path: Path
    model: QuantizedModel | None
    plan: QuantPlan
    notes: tuple[str, ...]
    verification: Verification
    size_bytes: int
    float_size_bytes: int
    speed: Speedup | None = None
    untimed: str = ""
    accuracy: Accuracy | None = None
    data_kind: str = ""
    missed: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[Path, ...] = ()
    blocks: tuple[BlockRecord, ...] = ()
    unmeasured: str = ""

    @property
    def title(self) -> str:
        """The bits of its weights and activations, and the target, in words."""
        return f"{plan_title(self.plan)}, for {self.target}"

    @property
    def target(self) -> str:
        """Runtime that it is quantized for."""
        return self.plan.target

    @property
    def mode(self) -> str:
        """Default quantization scheme."""
        return self.plan.recipe.mode

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Results on evaluation data or with labels, float model first; those of the file alone
        where a block-wise conversion has no memory for both."""
        return () if self.accuracy is None else self.accuracy.metrics

    @property
    def min_coverage_met(self) -> bool:
        """Whether the goal for the share in integer kernels is met; true without one."""
        return not self.missed["min_coverage"]

    @property
    def min_sqnr_met(self) -> bool:
        """Whether the goal for the SQNR is met; true without one."""
        return not self.missed["min_sqnr"]

    @property
    def passed(self) -> bool:
        """Whether the file meets all goals."""
        return not any(self.missed.values())

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on the speed and the goals, for the user."""
        slower = None if self.speed is None else self.speed.warning()
        goals = (
            f"{sentence}; the file was written" for sentence in self.missed.values() if sentence
        )
        return (*filter(None, [slower]), *goals)

    def summary(self) -> Summary:
        """Return the result in a few lines."""
        sizes = self.size_bytes, self.float_size_bytes
        result = self.verification.summary(str(self.path), self._headline())
        rows = [size_row(*sizes)]
        if self.speed is not None:
            rows += self.speed.rows()
        elif self.untimed:
            rows.append(("speed", f"not measured: {self.untimed}"))
        warnings = [*growth_warning(*sizes), *result.warnings]
        before = [row for row in result.rows if row[0] not in _AFTER_ACCURACY]
        if self.accuracy is not None:
            where = " (calibration data)" if self.data_kind == "calibration" else ""
            before += [(label, f"{text}{where}") for label, text in accuracy_rows(self.accuracy)]
            warnings += [f"warning: {warning}" for warning in self.accuracy.warnings]
        if self.unmeasured:
            whose = "accuracy" if self.accuracy is None else f"{FLOAT} accuracy"
            before.append((whose, f"not measured: {self.unmeasured}"))
        after = [row for row in result.rows if row[0] in _AFTER_ACCURACY]
        coverage = self.verification.coverage
        in_float = None if self.model is None else float_row(self.model.plan, coverage)
        if in_float is not None:
            at = next((i for i, row in enumerate(after) if row[0] == "integer"), -1)
            after.insert(at + 1, in_float)
        if self.blocks:
            after.append(("blocks", f"{len(self.blocks)}, each verified by itself"))
        notes = (*self.notes, *result.notes)
        return replace(result, rows=(*rows, *before, *after), notes=notes, warnings=tuple(warnings))

    def _headline(self) -> str:
        """Return the title, and what differs from the float model where no labels judge it."""
        fidelity = self.verification.fidelity
        if self.accuracy is not None:
            return self.title
        if fidelity.difference:
            return f"{self.title}; differs from float: {fidelity.difference}"
        if fidelity.blind:
            return f"{self.title}; accuracy not shown: {fidelity.blind} constant in all samples"
        return self.title

    def details(self) -> str:
        """Return the verification, the timing and the blocks in full."""
        speed = [] if self.speed is None else [str(self.speed)]
        blocks = [_blocks_table(self.blocks)] if self.blocks else []
        return "\n".join([self.verification.details(), *speed, *blocks])

    def __str__(self) -> str:
        summary = self.summary()
        return str(replace(summary, warnings=(*summary.warnings, *self.warnings)))


def write_file(
    quantized: QuantizedModel,
    path: str | Path,
    options: FileOptions | None = None,
    evaluation: EvaluationData | None = None,
) -> QuantizedFile:
    """Write a quantized model, verify it, and measure the file.

    Args:
        quantized: the result of `quantize` or `convert`.
        path: the file to write.
        options: format, timing and goals.
        evaluation: data to measure its accuracy on; None skips that.

    Raises:
        ExportError, FileError, VerificationError: as for `QuantizedModel.export`.
        DataError: unusable evaluation data.

    Example:
        >>> print(qtool.write_file(qtool.quantize(model, loader), "model.int8.onnx"))
    """
    place, options = Path(path), options or FileOptions()
    with track_task("exporting and verifying"):
        result = quantized.export(
            place,
            format=options.format,
            external_data=options.external_data,
            layout=options.layout or "nhwc",
            interface=options.interface,
            batch=options.batch,
            timing=0,
        )
        if options.float_file is not None:
            quantized.captured.export_float(options.float_file, quantized.plan.target)
    speed, untimed = _speed(quantized, place, options.timing)
    timed = 0 if speed is None or quantized.captured.file_bytes else speed.float_bytes
    file = QuantizedFile(
        place,
        quantized,
        quantized.plan,
        quantized.notes,
        result,
        _size(place, file_format(place, options.format)),
        timed or _float_size(quantized, place),
        speed,
        untimed,
        missed=missed_goals(result, options),
    )
    file, failure = try_accuracy(file, evaluation)
    if failure is not None:
        raise failure
    return file


def _speed(quantized: QuantizedModel, place: Path, seconds: float) -> tuple[Speedup | None, str]:
    """Return the speed of a file, or why it is not timed."""
    untimed = untimed_reason(quantized.plan.target, place.suffix.lower()) if seconds else ""
    if untimed or not seconds:
        return None, untimed
    with track_task("timing"):
        return measure_speedup(quantized, place, seconds=seconds), ""


def try_accuracy(
    file: QuantizedFile, evaluation: EvaluationData | None
) -> tuple[QuantizedFile, QtoolError | None]:
    """Return a file that was written with its accuracy on data, and None; or the file as it is, and
    an error that says so."""
    if evaluation is None:
        return file, None
    assert file.model is not None
    return with_accuracy(file, evaluation, file.model.reference)


def with_accuracy(
    file: QuantizedFile, evaluation: EvaluationData, reference: FloatGraph, *, alone: bool = False
) -> tuple[QuantizedFile, QtoolError | None]:
    """Do what `try_accuracy` does. reference, alone: see `measure_accuracy`."""
    try:
        with _evaluation_in_errors(evaluation.kind != "calibration"):
            accuracy = _measure_accuracy(
                reference,
                file.target,
                file.path,
                in_column_order(evaluation.batches, reference.columns),
                evaluation.labels,
                alone=alone,
                progress=stage("evaluating", length_of(whole_texts(evaluation.batches))),
            )
    except QtoolError as error:
        kind = DataError if isinstance(error, DataError) else VerificationError
        sentence = f"{file.path} is written and verified, its evaluation failed: {error.problem}"
        return file, kind(sentence, *error.remedies)
    return replace(file, accuracy=accuracy, data_kind=evaluation.kind), None


def _float_size(quantized: QuantizedModel, path: Path) -> int:
    """Return the bytes of the float file that the user has, or of one of the format of a file."""
    target_name, suffix = quantized.plan.target, path.suffix.lower()
    with scratch_folder() as folder:
        return Baseline(quantized.captured, folder, target_name, suffix).size_bytes


def _size(path: Path, kind: str) -> int:
    """Return the bytes of a model's file in a format, with its external data."""
    files = open_file(path).parts if format_of(kind) is ONNX else [path]
    return sum(f.stat().st_size for f in files)


def missed_goals(result: Verification, options: FileOptions) -> dict[str, str]:
    """Return goal -> a sentence if it was missed, else an empty text."""
    judged, least = result.fidelity.judged, options.min_sqnr
    coverage = sqnr = ""
    if options.min_coverage is not None:
        named = argument("--min-coverage", _shortest(options.min_coverage))
        coverage = result.coverage.missed(options.min_coverage, named)
    if least is not None:
        goal = argument("--min-sqnr", _shortest(least))
        if judged is None:
            sqnr = f"no output has an SQNR that could be measured, so that {goal} is not proved"
        elif not finite_or_inf(judged.sqnr_db) >= least:
            sqnr = f"SQNR of '{judged.output}' is {judged.sqnr_db:.1f} dB, below {goal}"
    return {"min_coverage": coverage, "min_sqnr": sqnr}


def _shortest(number: float) -> float:
    """Return a number that is printed without ".0"."""
    return int(number) if number == int(number) else number
