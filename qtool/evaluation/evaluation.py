"""What is measured of files on the same data: accuracy, size, speed and integer share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qtool.backends.formats import open_file, runtime_title
from qtool.backends.model_file import Deployment, ModelFile
from qtool.core.number_texts import db, percent, size, table
from qtool.core.option_names import NATIVE
from qtool.core.summary import Result, Summary
from qtool.evaluation.latency.interleaved_timing import Ratio, Row, Timing, speed_rows
from qtool.evaluation.machine import Machine
from qtool.evaluation.measure.accuracy import Accuracy
from qtool.evaluation.report.verdict import Verdict, best_in_column
from qtool.evaluation.subject import Subject
from qtool.evaluation.summary_rows import (
    accuracy_rows,
    growth_warning,
    integer_row,
    size_row,
    sqnr_row,
)
from qtool.metrics.output_kind import EQUAL
from qtool.verification import Coverage, Exactness


@dataclass(frozen=True)
class ModelFacts:
    """One of the models; the first is the reference.

    Attributes:
        name: short name, unique among them.
        file: file name.
        origin: where the file comes from, in words.
        size_bytes: size of the file and its external data.
        integer_mac_share: share of MACs in integer kernels, 0 to 1.
        macs: MACs of one sample; 0 where operators were not audited.
        operators, integer_operators: audited operators, and those of them in integer kernels.
        exactness: None if the file was not compared with the integer engine.
        verdict: None for the reference, and where none was asked for.
        target: what the file was made for; None if qtool did not make it.
        mode: mode of its recipe, one of `MODES`; of those that begin with "weight-only" weights
            alone are quantized, for size and the time of a decoder's step; None if qtool did not
            make it.
        runs_here: False if the kernels that it was made for are not those of this machine, so that
            latencies measured here say nothing about the target.
        deployment: memory of a file for microcontrollers; in a
            report alone.
        integer_weight_mac_share: share of MACs with integer weights and float activations, 0 to 1.
        timed: what was timed, in words: of the reference, the file that speeds are relative to, ""
            for itself; of another model, where it was timed if that has to be said, see
            `runtime_of`.
        unknown_operators: operators whose work is not known; `macs` and shares leave them out.
    """

    name: str
    file: str
    origin: str
    size_bytes: int
    integer_mac_share: float
    macs: int
    operators: int
    integer_operators: int
    exactness: Exactness | None = None
    verdict: Verdict | None = None
    target: str | None = None
    mode: str | None = None
    runs_here: bool = True
    deployment: Deployment | None = None
    integer_weight_mac_share: float = 0.0
    timed: str = ""
    unknown_operators: int = 0

    @classmethod
    def of(cls, subject: Subject, coverage: Coverage | None, is_reference: bool) -> ModelFacts:
        """Return what a file says of itself.

        Args:
            subject: the model.
            coverage: its audit; None: no operator counts as known.
            is_reference: whether the others are compared with it.
        """
        file, audit = open_file(subject.file), coverage or Coverage("", ())
        conversion = None if is_reference else file.conversion()
        info = None if conversion is None else conversion.info
        return cls(
            subject.name,
            file.path.name,
            subject.origin,
            subject.size_bytes or sum(part.stat().st_size for part in file.parts),
            0.0 if coverage is None else audit.share,
            audit.macs,
            len(audit.rows),
            len(audit.rows) - len(audit.float_rows),
            target=None if info is None else info.target,
            mode=None if info is None else info.recipe.mode,
            runs_here=info is None or file.runs_here,
            integer_weight_mac_share=audit.weight_share,
            timed=subject.timed_name if is_reference else runtime_of(file),
            unknown_operators=audit.unknown_operators,
        )


@dataclass(frozen=True, kw_only=True)
class Evaluation(Result):
    """Models on the same data, the reference first.

    Attributes:
        models: the models.
        machine: where they were timed.
        accuracy: errors of the outputs, agreement and metrics of each model.
        latency: times of all models, for each batch size, number of threads and phase; those of a
            decoder with a KV cache are the prompt's, then the step's.
        runtime: where the files ran, with its version; "" for that of their format.
    """

    models: tuple[ModelFacts, ...]
    machine: Machine
    accuracy: Accuracy
    latency: tuple[Timing, ...]
    runtime: str = ""

    @property
    def speedup(self) -> Ratio | None:
        """Time of the reference / time of the last model at the first batch size and number of
        threads, of a decoder of a step; None if nothing was timed."""
        first = [t for t in self.latency if t.conditions == self.latency[0].conditions]
        return first[-1].ratios[-1] if first else None

    def summary(self, title: str | None = None) -> Summary:
        """Return the figures of the second model next to those of the reference."""
        place = f" in {self.runtime}" if self.runtime else ""
        rows, warnings = tuple(self.figures()), self.warnings()
        text = f"compared with its float model{place}"
        return Summary(title or "quantized", text, rows, warnings=warnings)

    def figures(self) -> list[Row]:
        """Return (label, figures) of the model after the reference."""
        reference, model = self.models[:2]
        measured, exact, name = self.accuracy, model.exactness, reference.name
        outcome = measured.models[1]
        whole = outcome.yardsticks and all(o.kind == EQUAL for o in outcome.yardsticks)
        speeds = speed_rows(self.latency, 1, reference.timed or name)
        place = f", {model.timed}" if model.timed else ""
        shares = (model.integer_mac_share, model.integer_weight_mac_share)
        operators = (model.integer_operators, model.operators)
        label, text = integer_row(*shares, model.unknown_operators, model.macs, operators)
        return [
            size_row(model.size_bytes, reference.size_bytes, name),
            *((label, f"{text}{place}") for label, text in speeds),
            *([] if whole else [sqnr_row(outcome.sqnr_db, measured.samples, outcome.outputs)]),
            *accuracy_rows(measured, 1, name),
            (label, text if model.runs_here else f"{text} (as planned for {model.target})"),
            *([] if exact is None else exact.rows()[:1]),
        ]

    def warnings(self) -> tuple[str, ...]:
        """Return what is implausible; of a single model also that it is larger."""
        sizes = (self.models[1].size_bytes, self.models[0].size_bytes, self.models[0].name)
        grown = growth_warning(*sizes) if len(self.models) == 2 else ()
        return (*grown, *(f"warning: {warning}" for warning in self.accuracy.warnings))

    def table(self) -> str:
        """Return a table of verdict, accuracy, latency and size with a column per model.

        With several models besides the reference, `*` marks the best one of a row.
        """
        metrics, outcomes = self.accuracy.metrics, self.accuracy.models
        verdicts = [m.verdict.headline if m.verdict else "reference" for m in self.models]
        rows = [("verdict", *verdicts)] if any(m.verdict for m in self.models) else []
        rows += [(m.name, *self._marked(m.name, map(m.text, m.values))) for m in metrics]
        if self.accuracy.scores:
            agreements = (percent(o.agreement.value) if o.agreement else "" for o in outcomes)
            name = self.accuracy.agreement_name
            rows.append((name, *self._marked("agreement", agreements)))
        errors = ("reference", *(db(o.sqnr_db) for o in outcomes[1:]))
        rows.append(("output SQNR dB", *self._marked("sqnr", errors)))
        for number, timing in enumerate(self.latency):
            pairs = zip(timing.models, timing.ratios, strict=True)
            cells = (f"{s.median:.3f} ms ({r.median:.2f}x)" for s, r in pairs)
            rows.append((timing.what, *self._marked(f"latency {number}", cells)))
        rows.append(("size", *self._marked("size", (size(m.size_bytes) for m in self.models))))
        shares = (percent(m.integer_mac_share) for m in self.models)
        rows.append(("MACs in integer kernels", *shares))
        return table(("", *(m.name for m in self.models)), rows)

    def _marked(self, column: str, cells: Iterable[str]) -> Iterator[str]:
        """Return the cells of a row, the best of several models with a mark."""
        best = best_in_column(self, column) if len(self.models) > 2 else ()
        return (f"{cell} *" if i in best else cell for i, cell in enumerate(cells))


def runtime_of(file: ModelFile) -> str:
    """Return where a file was timed on this machine, "" for an ONNX file that is for this machine.

    For others: "in LiteRT 2.1.0", "in LiteRT 2.1.0, on this CPU, not on tflite-micro".
    """
    title = runtime_title(NATIVE, file.suffix)
    place = "" if file.runs_here else f"on this CPU, not on {file.target}"
    return ", ".join(filter(None, [f"in {title}" if title else "", place]))
