"""How close the outputs of a quantized model are to those of the float model.

Whether a file computes what was planned is another question (`bit_exactness`, `planned_file`): a
plan can be carried out to the last bit and still be of no use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from qtool.core import number_texts
from qtool.core.output_evidence import Evidence
from qtool.core.records import JsonRecord
from qtool.core.sqnr import NO_SIGNAL_DB, sqnr
from qtool.core.types import Array
from qtool.metrics.compared_batches import (
    ComparedBatches,
    by_values,
    by_values_text,
    compared_outputs,
    is_cache,
)
from qtool.metrics.output_agreement import OutputAgreement, agreements_text
from qtool.metrics.output_errors import finite_or_inf
from qtool.metrics.output_kind import EQUAL, NUMBERS
from qtool.verification.estimate import CALIBRATION, Estimate, OutputEstimate, estimate_outputs

MIN_SQNR_DB = 20.0
"""SQNR of an output below which a warning is printed: a tenth of the signal is noise."""
NEAR_DB = 30.0
"""SQNR below which the headline says that an output without a yardstick differs: 3 % is noise."""
_COLLAPSED = 0.9  # share of an output's values in one value to print a note above
_COUNTED = 100_000  # values
_CLIPPED = 0.001  # share of values beyond their ranges to print a note above
_CLEAR_DB = 30.0  # SQNR from which other classes are the float model's own close calls
_SHOWN, _NAMED = 4, 3  # outputs and layers in a sentence

Arrays = Sequence[Array]


class OutputSqnr(NamedTuple):
    """SQNR of one output in dB; None without noise."""

    output: str
    sqnr_db: float | None


class OutputShare(NamedTuple):
    """A share, 0 to 1, of the values of one output."""

    output: str
    share: float


class LayerSqnr(NamedTuple):
    """Lowest SQNR of an output in dB if only this layer is quantized."""

    layer: str
    sqnr_db: float


Outputs = tuple[OutputSqnr, ...]


@dataclass(frozen=True)
class Fidelity(JsonRecord):
    """Comparison of the outputs on a sample with those of the float model.

    Attributes:
        samples: number of samples.
        outputs: SQNR of the float outputs against the float model.
        estimate: errors to be expected on new data; those of the same sample where there is no
            other.
        not_finite: outputs that hold NaN or Inf in the float model itself.
        costliest: the layers that cost most, the worst first; measured if an output is below
            `MIN_SQNR_DB`.
        near_zero_divisions: divisions whose divisor quantization may take through zero.
        collapsed: outputs with this share of values in one value that differ in the float model: a
            few others are so much larger that they alone decide the SQNR.
        states: outputs that are states of recurrent layers, unless the user names what they are.
        by_values: outputs whose number of rows depends on values, which are not compared.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("worst", "warning")

    samples: int
    outputs: Outputs
    estimate: Estimate
    not_finite: tuple[str, ...] = ()
    costliest: tuple[LayerSqnr, ...] = ()
    near_zero_divisions: tuple[str, ...] = ()
    collapsed: tuple[OutputShare, ...] = ()
    by_values: tuple[str, ...] = ()
    states: tuple[str, ...] = ()

    @property
    def worst(self) -> float:
        """SQNR in dB that is shown, of the worst output; infinite if none has noise."""
        return min((finite_or_inf(db) for _, db in self._figures()), default=float("inf"))

    @property
    def judged(self) -> OutputSqnr | None:
        """The output with the lowest SQNR that a goal judges: no cache and no state, which the
        outputs that read them judge, unless there is nothing else. None without float outputs."""
        figures = self._figures()
        kept = [o for o in figures if not is_cache(o.output) and o.output not in self.states]
        return min(kept or figures, key=lambda o: finite_or_inf(o.sqnr_db), default=None)

    def _figures(self) -> Outputs:
        """Return the SQNR of each output: its median over the samples of the estimate."""
        return tuple(OutputSqnr(o.output, o.median_db) for o in self.estimate.outputs)

    @property
    def warning(self) -> str | None:
        """One line if an output is below `MIN_SQNR_DB`, or is estimated to be on new data.

        Not if it does what the float model does, see `OutputAgreement.is_good`; also above, if it
        is hardly of use. A KV cache is judged by the outputs that read it.
        """
        good = {each.output for each in self.estimate.agreements if each.is_good}
        poor = self._poor()
        figures = [(n, db) for n, db in self._figures() if not is_cache(n)]
        low = [n for n, db in figures if db is not None and db < MIN_SQNR_DB and n not in good]
        if not low and not poor:
            return None
        layers = ", ".join(f"{name} ({db:.1f} dB alone)" for name, db in self.costliest)
        why = f"; most sensitive layers: {layers}" if layers else ""
        broken = [n for n, db in self.outputs if n in self.not_finite and db == NO_SIGNAL_DB]
        low = [name for name in low if name not in broken]
        problems = (
            [f"the float model gives only NaN or Inf in {_outputs(broken)}"] if broken else []
        )
        problems += [f"{_outputs(low)} below {MIN_SQNR_DB:g} dB SQNR"] if low else []
        problems += [f"output '{each.output}' is hardly of use ({each})" for each in poor]
        return f"warning: {' and '.join(problems)}{why}"

    @property
    def difference(self) -> str:
        """What differs from the float model in use, for a headline; "" where hardly anything does.

        Outputs without a yardstick are judged by their SQNR, and numbers that keep most of their
        variance by both. A KV cache is judged by the outputs that read it.
        """
        errors = dict(self._figures())
        clear = {name for name, db in errors.items() if db is None or db >= _CLEAR_DB}
        far = [
            each
            for each in self.estimate.agreements
            if not (each.is_near or each.is_constant)
            and not (each.output in clear and each.keeps_numbers)
        ]
        if far:
            return min(far, key=lambda each: each.on_new).headline
        known = {each.output for each in self.estimate.agreements if not each.caution}
        figures = [
            db
            for name, db in errors.items()
            if db is not None and name not in known and not is_cache(name)
        ]
        low = min(figures, default=NEAR_DB)
        return f"SQNR {decibels_text(low)}" if low < NEAR_DB else ""

    @property
    def blind(self) -> str:
        """The outputs, if none varies over samples: equal ones prove nothing; else ""."""
        constant = {each.output for each in self.estimate.agreements if each.is_constant}
        main = [o.output for o in self.outputs if not is_cache(o.output)]
        return _outputs(main) if main and constant.issuperset(main) else ""

    def _poor(self) -> list[OutputAgreement]:
        """Return the outputs that are hardly of use."""
        errors = {name: finite_or_inf(db) for name, db in self._figures()}
        limits = {NUMBERS: MIN_SQNR_DB, EQUAL: np.inf}
        return [
            each
            for each in self.estimate.agreements
            if each.is_poor and errors.get(each.output, -np.inf) < limits.get(each.kind, _CLEAR_DB)
        ]

    def row(self) -> tuple[str, str]:
        """Return (label, figures) for a summary: the errors to be expected on new data."""
        return "SQNR", self._estimated()

    def _estimated(self) -> str:
        estimate, outputs = self.estimate, self.estimate.outputs
        main = [o for o in outputs if not is_cache(o.output)] or list(outputs)
        shown = estimate.text(main) if main else ""
        caches = [o.median_db for o in outputs if o not in main and o.median_db is not None]
        if caches:
            shown += f", KV cache {decibels_text(min(caches))}"
        named = [o.output for o in self.outputs], [a.output for a in estimate.agreements]
        several = len({*named[0], *named[1]}) > 1
        agreements = agreements_text(estimate.agreements[:_SHOWN], several)
        if agreements and not shown:
            return f"{agreements} ({estimate.source})"
        shown = shown or ("not measured" if self.by_values else "")
        return f"{shown}; {agreements}" if agreements else shown

    def notes(self) -> tuple[str, ...]:
        """Return sentences for the user on weak points of the outputs."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        if note := self.estimate.caution:
            yield note
        if self.estimate.clipped > _CLIPPED:
            yield (
                f"{number_texts.percent(self.estimate.clipped)} of the values of inputs and "
                "outputs are beyond their calibrated ranges; calibrate on data that reaches further"
            )
        if self.by_values:
            yield by_values_text(self.by_values)
        yield from (each.caution for each in self.estimate.agreements if each.caution)
        if self.not_finite:
            yield f"the float model itself outputs NaN or Inf in {_listed(self.not_finite)}"
        for output, share in self.collapsed[:_NAMED]:
            yield (
                f"{100 * share:.0f} % of the values of output '{output}' collapse into one, since "
                "a few others are far larger; a recipe can keep its layer in float"
            )
        if self.near_zero_divisions:
            yield (
                f"{_listed(self.near_zero_divisions)} divides by values near zero, which amplifies "
                "quantization noise without bound; a recipe can keep the layers of the divisor in "
                "float"
            )

    def __str__(self) -> str:
        lines = [f"to be expected on new data: {self._estimated()}"]
        if self.outputs:
            where = number_texts.quantity(self.samples, "sample")
            lines.insert(0, f"SQNR against the float model ({where}): {outputs_text(self.outputs)}")
        lines += [f"note: {note}" for note in self._notes()]
        return "\n".join(lines if self.warning is None else [*lines, self.warning])


def compare_outputs(
    samples: int,
    names: Sequence[str],
    real: Arrays,
    quantized: Arrays,
    evidence: Mapping[str, Evidence] = MappingProxyType({}),
    estimate: Estimate | None = None,
) -> Fidelity:
    """Compare the outputs of the float and of the quantized model.

    Args:
        samples: number of samples.
        names: names of the outputs.
        real: outputs of the float model.
        quantized: outputs of the quantized model.
        evidence: output -> what is known of it besides its values.
        estimate: errors to be expected on new data; None: those of these outputs.
    """
    if estimate is None:
        batch = ComparedBatches(names, evidence)
        estimate = estimate_outputs(batch.add(real, quantized, samples), CALIBRATION)
        estimate = replace(estimate, agreements=batch.agreements())
    left = tuple(by_values(names, evidence))
    names, real, quantized = compared_outputs(names, real, quantized, evidence)
    outputs, not_finite, collapsed = [], [], []
    for name, a, b in zip(names, real, quantized, strict=True):
        if a.dtype.kind != "f" or not a.size or a.shape != b.shape:  # values decide some sizes
            continue
        if not np.isfinite(a).all():
            not_finite.append(name)
        outputs.append(OutputSqnr(name, sqnr(a, b) if np.isfinite(a).any() else NO_SIGNAL_DB))
        share = _mode_share(b)
        if share > _COLLAPSED and share - _mode_share(a) > _COLLAPSED / 2:
            collapsed.append(OutputShare(name, share))
    broken = {n for n, db in outputs if n in not_finite and db == NO_SIGNAL_DB}
    known = (
        OutputEstimate(o.output, *[NO_SIGNAL_DB] * 5) if o.output in broken else o
        for o in estimate.outputs
    )
    estimate = replace(estimate, outputs=tuple(known))
    return Fidelity(
        samples,
        tuple(outputs),
        estimate,
        tuple(not_finite),
        collapsed=tuple(collapsed),
        by_values=left,
        states=tuple(n for n in names if n in evidence and evidence[n].is_state_alone),
    )


def _mode_share(x: Array) -> float:
    """Return the approximate share of the most frequent value."""
    some = x.ravel()[:: 1 + x.size // _COUNTED]
    return float(np.unique(some, return_counts=True)[1].max()) / some.size


def outputs_text(outputs: Sequence[OutputSqnr]) -> str:
    """Return the SQNR of each output in the order of the model, of many those of the worst."""
    ordered = sorted(outputs, key=lambda o: float("inf") if o[1] is None else o[1])[:_SHOWN]
    each = [f"{n} {decibels_text(db)}" for n, db in outputs if OutputSqnr(n, db) in ordered]
    more = f" and {len(outputs) - len(each)} more" if len(outputs) > len(each) else ""
    return f"{', '.join(each)}{more}"


def decibels_text(value: float | None) -> str:
    """Return an SQNR in words."""
    return "no noise" if value is None else f"{value:.1f} dB"


def _outputs(names: Sequence[str]) -> str:
    return f"output{'s' if len(names) > 1 else ''} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{n}'" for n in names[:_SHOWN]) + more
