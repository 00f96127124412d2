"""How close the outputs of a quantized model are to those of the float model.

Whether a file computes what was planned is another question (`bit_exactness`, `planned_file`): a
plan can be carried out to the last bit and still be of no use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from qtool.core import formats
from qtool.core.output_evidence import Evidence
from qtool.core.records import JsonRecord
from qtool.core.sqnr import NO_SIGNAL_DB, sqnr
from qtool.metrics.compared_batches import ComparedBatches, is_cache
from qtool.metrics.matched_rows import compared_outputs
from qtool.metrics.output_agreement import (
    NEAR,
    OutputAgreement,
    OutputShare,
    agreements_text,
)
from qtool.metrics.output_errors import finite_or_inf
from qtool.metrics.output_kind import NUMBERS
from qtool.verification.estimate import Estimate

MIN_SQNR_DB = 20.0
"""SQNR of an output below which a warning is printed: a tenth of the signal is noise."""
NEAR_DB = 30.0
"""SQNR below which the headline says that an output without a yardstick differs: 3 % is noise."""
_MIN_EQUAL = 0.9  # share of equal values of an integer output (classes, a mask) to warn below
_COLLAPSED = 0.9  # share of an output's values in one value to print a note above
_COUNTED = 100_000  # values
_CLIPPED = 0.001  # share of values beyond their ranges to print a note above
_CLEAR_DB = 30.0  # SQNR from which other classes are the float model's own close calls
_SHOWN, _NAMED = 4, 3  # outputs and layers in a sentence

Arrays = Sequence[np.ndarray[Any, Any]]


class OutputSqnr(NamedTuple):
    """SQNR of one output in dB; None without noise."""

    output: str
    sqnr_db: float | None


class LayerSqnr(NamedTuple):
    """Lowest SQNR of an output in dB if only this layer is quantized."""

    layer: str
    sqnr_db: float


class NarrowInput(NamedTuple):
    """An input of a concat that uses few of its codes."""

    concat: str
    input: str
    codes: int


Outputs = tuple[OutputSqnr, ...]


@dataclass(frozen=True)
class Fidelity(JsonRecord):
    """Comparison of the outputs on a sample with those of the float model.

    Attributes:
        samples: number of samples.
        outputs: SQNR of the float outputs against the float model.
        not_finite: outputs that hold NaN or Inf in the float model itself.
        costliest: the layers that cost most, the worst first; measured if an output is below
            `MIN_SQNR_DB`.
        narrow_inputs: inputs of concats that use few codes of the concatenated tensor.
        estimate: errors to be expected on new data; None without samples to measure them on.
        near_zero_divisions: divisions whose divisor quantization may take through zero.
        collapsed: outputs with this share of values in one value that differ in the float model: a
            few others are so much larger that they alone decide the SQNR.
        equal_shares: share of equal values of the integer and boolean outputs; not of a KV cache,
            whose codes differ by one everywhere and mean the same.
        agreements: what changes for a user of the outputs, on the same samples as `outputs`.
        states: outputs that are states of recurrent layers, unless the user names what they are.
        by_values: outputs whose number of rows depends on values, which are not compared.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("worst", "warning")

    samples: int
    outputs: Outputs
    not_finite: tuple[str, ...] = ()
    costliest: tuple[LayerSqnr, ...] = ()
    narrow_inputs: tuple[NarrowInput, ...] = ()
    estimate: Estimate | None = None
    near_zero_divisions: tuple[str, ...] = ()
    collapsed: tuple[OutputShare, ...] = ()
    equal_shares: tuple[OutputShare, ...] = ()
    agreements: tuple[OutputAgreement, ...] = ()
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
        if self.estimate is None:
            return self.outputs
        return tuple(OutputSqnr(o.output, o.median_db) for o in self.estimate.outputs)

    @property
    def warning(self) -> str | None:
        """One line if an output is below `MIN_SQNR_DB`, or is estimated to be on new data.

        Not if it does what the float model does, see `OutputAgreement.is_good`; also above, if it
        is hardly of use. A KV cache is judged by the outputs that read it.
        """
        good = {each.output for each in self._agreed if each.is_good}
        poor = self._poor()
        figures = [(n, db) for n, db in self._figures() if not is_cache(n)]
        low = [n for n, db in figures if db is not None and db < MIN_SQNR_DB and n not in good]
        other = [name for name, share in self._equal if share < _MIN_EQUAL]
        if not low and not other and not poor:
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
        if other:
            problems.append(
                f"less than {100 * _MIN_EQUAL:g} % of {_outputs(other)} as in the float model"
            )
        return f"warning: {' and '.join(problems)}{why}"

    @property
    def difference(self) -> str:
        """What differs from the float model in use, for a headline; "" where hardly anything does.

        Outputs without a yardstick are judged by their SQNR, and what only looks like scores of
        classes by both. A KV cache is judged by the outputs that read it.
        """
        errors = dict(self._figures())
        clear = {name for name, db in errors.items() if db is None or db >= _CLEAR_DB}
        far = [
            each
            for each in self._agreed
            if not each.is_near and not (each.kind == NUMBERS and each.output in clear)
        ]
        if far:
            return min(far, key=lambda each: each.value).headline
        other = [each for each in self._equal if each.share < NEAR]
        if other:
            output, share = min(other, key=lambda each: each.share)
            return f"{formats.share(share)} of {output} equal"
        known = {each.output for each in self._agreed}
        figures = [
            db
            for name, db in errors.items()
            if db is not None and name not in known and not is_cache(name)
        ]
        low = min(figures, default=NEAR_DB)
        return f"SQNR {decibels_text(low)}" if low < NEAR_DB else ""

    def _poor(self) -> list[OutputAgreement]:
        """Return the outputs that are hardly of use."""
        errors = dict(self._figures())
        limits = (
            (each, MIN_SQNR_DB if each.kind == NUMBERS else _CLEAR_DB) for each in self._agreed
        )
        return [
            each
            for each, limit in limits
            if each.is_poor and (db := errors.get(each.output)) is not None and db < limit
        ]

    def _agreements(self) -> str:
        """Return what the outputs agree in, of several with their names."""
        return agreements_text(self._agreed[:_SHOWN], len(self.outputs) > 1)

    @property
    def _agreed(self) -> tuple[OutputAgreement, ...]:
        """The agreements that are shown and judged: on new data where it was measured."""
        return self.agreements if self.estimate is None else self.estimate.agreements

    @property
    def _equal(self) -> tuple[OutputShare, ...]:
        """The shares of equal values that are shown and judged."""
        return self.equal_shares if self.estimate is None else self.estimate.equal_shares

    def _shown(self) -> str:
        same = sorted(self.equal_shares, key=lambda each: each[1])
        shares = [f"{formats.percent(share)} of {name} equal" for name, share in same[:_SHOWN]]
        return ", ".join([outputs_text(self.outputs), *shares] if self.outputs else shares)

    def row(self) -> tuple[str, str]:
        """Return (label, figures) for a summary: the errors to be expected on new data."""
        if self.estimate is not None:
            return "SQNR", self._estimated(self.estimate)
        outputs = self.outputs
        where = formats.quantity(self.samples, "calibration sample")
        main = [o for o in outputs if not is_cache(o.output)] or list(outputs)
        shown = decibels_text(main[0].sqnr_db) if len(main) == 1 else outputs_text(main)
        if caches := [o.sqnr_db for o in outputs if o not in main and o.sqnr_db is not None]:
            shown = f"{main[0].output if len(main) == 1 else ''} {shown}".strip()
            shown += f", KV cache {decibels_text(min(caches))}"
        same = sorted(self.equal_shares, key=lambda each: each[1])
        equal = [f"{formats.share(each.share)} of {each.output} equal" for each in same[:_SHOWN]]
        text = f"{', '.join(filter(None, [shown, *equal]))} ({where})"
        if agreements := self._agreements():
            text += f"; {agreements} ({formats.quantity(self.samples, 'calibration sample')})"
        return "SQNR", text

    def _estimated(self, estimate: Estimate) -> str:
        outputs = estimate.outputs
        main = [o for o in outputs if not is_cache(o.output)] or list(outputs)
        shown = estimate.text(main) if main else ""
        caches = [o.median_db for o in outputs if o not in main and o.median_db is not None]
        if caches:
            shown += f", KV cache {decibels_text(min(caches))}"
        same = sorted(estimate.equal_shares, key=lambda each: each[1])
        equal = [f"{formats.share(each.share)} of {each.output} equal" for each in same[:_SHOWN]]
        if equal:
            shown = f"{', '.join(filter(None, [shown, *equal]))} ({estimate.source})"
        agreements = self._agreements()
        shown = shown or ("not measured" if self.by_values else "")
        return f"{shown}; {agreements}" if agreements else shown

    def notes(self) -> tuple[str, ...]:
        """Return sentences for the user on weak points of the outputs."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        if self.estimate is not None:
            if note := self.estimate.caution:
                yield note
            if self.estimate.clipped > _CLIPPED:
                yield (
                    f"{formats.percent(self.estimate.clipped)} of the values of inputs and outputs "
                    "are beyond their calibrated ranges; calibrate on data that reaches further"
                )
        if self.by_values:
            yield (
                f"values decide how many rows {_listed(self.by_values)} has, so that rows are not "
                "compared"
            )
        for each in self._agreed:
            if not each.compared:
                yield (
                    f"no sample has a value of '{each.output}' above {each.threshold:g}, so that "
                    "none shows what it detects"
                )
        if self.not_finite:
            yield f"the float model itself outputs NaN or Inf in {_listed(self.not_finite)}"
        for concat, source, codes in self.narrow_inputs[:_NAMED]:
            yield (
                f"'{source}' uses only {codes} codes of '{concat}', which concatenates it with a "
                f"much wider tensor; a recipe can keep '{concat}' in float"
            )
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
        measure = "SQNR against" if self.outputs else "agreement with"
        where = formats.quantity(self.samples, "sample")
        lines = [f"{measure} the float model ({where}): {self._shown()}"]
        if self.estimate is not None:
            lines.append(f"to be expected on new data: {self._estimated(self.estimate)}")
        elif agreements := self._agreements():
            lines.append(f"agreement with the float model ({where}): {agreements}")
        lines += [f"note: {note}" for note in self._notes()]
        return "\n".join(lines if self.warning is None else [*lines, self.warning])


def compare_outputs(
    samples: int,
    names: Sequence[str],
    real: Arrays,
    quantized: Arrays,
    evidence: Mapping[str, Evidence] = MappingProxyType({}),
) -> Fidelity:
    """Compare the outputs of the float and of the quantized model.

    Args:
        samples: number of samples.
        names: names of the outputs.
        real: outputs of the float model.
        quantized: outputs of the quantized model.
        evidence: output -> what is known of it besides its values.
    """
    batch = ComparedBatches(names, evidence)
    batch.add(real, quantized, samples)
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
    return Fidelity(
        samples,
        tuple(outputs),
        tuple(not_finite),
        collapsed=tuple(collapsed),
        equal_shares=batch.equal_shares(),
        agreements=batch.agreements(),
        by_values=tuple(batch.left),
        states=tuple(n for n in names if n in evidence and evidence[n].is_state_alone),
    )


def _mode_share(x: np.ndarray[Any, Any]) -> float:
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
