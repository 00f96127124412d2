"""How near a quantized model comes to the float model, and what stands in the way.

That a file computes what was planned is another matter (exact.py, parity.py): a plan can be carried
out to the last bit and be of no use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.types import QuantParams
from qtool.planning.plan import Execution, Kind, QuantPlan

MIN_SQNR_DB = 20.0
"""dB of an output below which people are warned: a tenth of its size is noise."""

SHOWN, NAMED, TRIED = 4, 3, 8  # outputs and layers in a sentence; samples to find layers with
SUFFIXES = 128  # of them, times layers: each layer is run with what is behind it
FEW = 16
"""Codes, of 256, that an input of a concat should span at least."""
SAME = 0.9
"""The share of equal values of an output of integers (classes, a mask) below which people are
warned."""
MOST = 0.9
"""The share of an output's values above which they should not become one."""
COUNTED = 100_000

Arrays = Sequence[np.ndarray[Any, Any]]
Outputs = tuple[tuple[str, float | None], ...]
"""(name, signal to noise in dB; None without noise)"""


@dataclass(frozen=True)
class Fidelity:
    """The outputs on a sample, beside those of the float model.

    outputs: (name, signal to noise in dB; None without noise) of the outputs in float.
    not_finite: outputs that hold NaN or Inf in the float model itself.
    narrow: (concat, input, codes): inputs that span few codes of what a concat gives, since another
        is much wider.
    costly: (layer, dB that the outputs keep with it alone quantized), the worst first; looked for
        where an output is below `ENOUGH`.
    expected: as `outputs`, of fake quantization, on samples of the calibration that no step of the
        conversion learned from; aside: how many these are.
    poles: divisions by what quantization may take through zero.
    equal: (name, share of equal values) of the outputs that are integers, or true and false.
    tails: tensors behind an exponential of which few samples decide the range.
    alike: (output, share): outputs of which so many values have become one, which differ in float:
        a few others are so much larger that they alone make the ratio.
    """

    samples: int
    outputs: Outputs
    not_finite: tuple[str, ...] = ()
    costly: tuple[tuple[str, float], ...] = ()
    narrow: tuple[tuple[str, str, int], ...] = ()
    expected: Outputs = ()
    n_holdout: int = 0
    near_zero_divisions: tuple[str, ...] = ()
    collapsed: tuple[tuple[str, float], ...] = ()
    equal: tuple[tuple[str, float], ...] = ()
    heavy_tails: tuple[str, ...] = ()

    @property
    def worst(self) -> float:
        """dB of the worst output; infinite where none has noise."""
        return min((db for _, db in self.outputs if db is not None), default=float("inf"))

    @property
    def warning(self) -> str | None:
        """In one line, where an output is below `ENOUGH`, or is expected to be."""
        both = (*self.outputs, *self.expected)
        low = list(dict.fromkeys(name for name, db in both if db is not None and db < MIN_SQNR_DB))
        other = [name for name, share in self.equal if share < SAME]
        if not low and not other:
            return None
        layers = ", ".join(f"{name} ({db:.1f} dB alone)" for name, db in self.costly)
        why = f"; most sensitive layers: {layers}" if layers else ""
        problems = [f"{_outputs(low)} below {MIN_SQNR_DB:g} dB SQNR"] if low else []
        if other:
            problems.append(
                f"less than {100 * SAME:g} % of {_outputs(other)} as in the float model"
            )
        return f"warning: {' and '.join(problems)}{why}"

    def to_json(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "sqnr": dict(self.outputs),
            "aside": self.n_holdout,
            "expected": dict(self.expected),
            "not_finite": list(self.not_finite),
            "narrow": [{"concat": c, "input": i, "codes": n} for c, i, n in self.narrow],
            "poles": list(self.near_zero_divisions),
            "tails": list(self.heavy_tails),
            "equal": dict(self.equal),
            "alike": [{"output": o, "share": share} for o, share in self.collapsed],
            "costly": [{"layer": name, "sqnr": db} for name, db in self.costly],
            "warning": self.warning,
        }

    def _shown(self) -> str:
        same = sorted(self.equal, key=lambda each: each[1])
        shares = [f"{100 * share:.2f} % of {name} equal" for name, share in same[:SHOWN]]
        return ", ".join([_shown(self.outputs), *shares] if self.outputs else shares)

    def _notes(self) -> Iterator[str]:
        if self.not_finite:
            yield f"the float model itself outputs NaN or Inf in {_listed(self.not_finite)}"
        for concat, source, codes in self.narrow[:NAMED]:
            yield (
                f"'{source}' uses only {codes} codes of '{concat}', which concatenates it with a "
                f"much wider tensor; a recipe can keep '{concat}' in float"
            )
        for output, share in self.collapsed[:NAMED]:
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
        if self.heavy_tails:
            yield (
                f"{_listed(self.heavy_tails)} grows so fast that a few samples decide its range "
                "and its SQNR; new data may be far out of range; a recipe can keep the layers "
                "before it in float"
            )

    def __str__(self) -> str:
        measure = "SQNR against" if self.outputs else "agreement with"
        lines = [f"{measure} the float model ({self.samples} samples): {self._shown()}"]
        if self.expected:
            samples = f"{self.n_holdout} held-out calibration samples"
            lines.append(f"estimated SQNR on new data ({samples}): {_shown(self.expected)}")
        lines += [f"note: {note}" for note in self._notes()]
        return "\n".join(lines if self.warning is None else [*lines, self.warning])


def decibels(signal: float, noise: float) -> float | None:
    """10 log10(signal / noise), of sums of squares; None without noise, and where neither is
    finite; -200 without signal."""
    if noise == 0.0 or not (math.isfinite(signal) and math.isfinite(noise)):
        return None
    return 10 * math.log10(signal / noise) if signal > 0 else -200.0


def compare_outputs(samples: int, names: Sequence[str], real: Arrays, coded: Arrays) -> Fidelity:
    """Compares outputs.

    Args:
        names: of the outputs. real, coded: of the float and of the quantized model.
    """
    outputs, wild, alike, equal = [], [], [], []
    for name, a, b in zip(names, real, coded, strict=True):
        if a.dtype.kind in "iub" and a.size and a.shape == b.shape:
            equal.append((name, float((a == b).mean())))
        if a.dtype.kind != "f" or not a.size or a.shape != b.shape:  # values decide some sizes
            continue
        if not np.isfinite(a).all():
            wild.append(name)
        outputs.append((name, _signal_to_noise(a, b)))
        if (share := _of_one_value(b)) > MOST and share - _of_one_value(a) > MOST / 2:
            alike.append((name, share))
    return Fidelity(
        samples, tuple(outputs), tuple(wild), collapsed=tuple(alike), equal=tuple(equal)
    )


def _of_one_value(x: np.ndarray[Any, Any]) -> float:
    """The share of the most frequent value, about."""
    some = x.ravel()[:: 1 + x.size // COUNTED]
    return float(np.unique(some, return_counts=True)[1].max()) / some.size


def holdout_sqnr(
    names: Sequence[str], batches: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> Outputs:
    """Signal to noise of outputs over several batches.

    Args:
        names: of the outputs in float. batches: the powers of each, and of the differences from
            them; NaN where these cannot be taken.
    """
    signal, noise = (torch.stack(each).sum(0) for each in zip(*batches, strict=True))
    known = ~noise.isnan()
    return tuple(
        (name, decibels(float(signal[i]), float(noise[i])))
        for i, name in enumerate(names)
        if known[i]
    )


def costliest_layers(
    graph: FloatGraph, plan: QuantPlan, batch: Batch
) -> tuple[tuple[str, float], ...]:
    """The layers that leave least of the outputs when they alone are quantized.

    Args:
        graph: with its points. batch: bound to its inputs; a few samples of it are used.
    """
    layers: dict[str, set[str]] = {}
    for point in plan:
        layer = plan.root(point.name) if point.kind is Kind.ACTIVATION else point.edges[0].user
        layers.setdefault(layer, set()).add(point.name)
    run, tried = Executor(graph), min(TRIED, max(1, SUFFIXES // max(1, len(layers))))
    real = run.run(graph.smaller(batch, tried), frozenset())
    found = []
    for layer, points in layers.items():
        new = run.rerun_changed(real, points & run.points, points)
        pairs = [(real[i].numpy(force=True), new[i]) for i in run.outputs if i in new]
        kept = [_signal_to_noise(a, b.numpy(force=True)) for a, b in pairs]
        found.append((layer, min((db for db in kept if db is not None), default=float("inf"))))
    worst = sorted(found, key=lambda layer: layer[1])[:NAMED]
    return tuple((name, db) for name, db in worst if db != float("inf"))


def narrow_inputs(
    graph: FloatGraph, plan: QuantPlan, params: Mapping[str, QuantParams], batch: Batch
) -> tuple[tuple[str, str, int], ...]:
    """The inputs of integer concats that span less than `FEW` codes of the result, see `Fidelity`.

    Args:
        graph: with its points. batch: bound to its inputs; a few samples of it are used.
    """
    joins = {d.node for d in plan.nodes if d.op == "concat" and d.execution is Execution.INTEGER}
    found = []
    if not joins:
        return ()
    run = Executor(graph)
    values = run.run(graph.smaller(batch, TRIED), frozenset())
    for name in joins:
        scale = params[name].scale if name in params else None
        for i in dict.fromkeys(run.calls[run.indices[name]].reads):
            value = values[i]
            if scale is None or not value.numel() or not value.is_floating_point():
                continue
            codes = int((value.max() - value.min()).cpu() / scale) + 1
            if 1 < codes < FEW or (codes == 1 and bool(value.max() > value.min())):
                found.append((name, run.name_of(i), codes))
    return tuple(sorted(found, key=lambda each: each[2]))


def _signal_to_noise(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float | None:
    """Where the float model gives no number its answer is matched or not; a number is compared."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    real, off = a.astype(np.float64), np.zeros(a.shape)
    np.subtract(b, real, out=off, where=~same)
    if not np.isfinite(off).all():
        return -200.0
    finite = real[np.isfinite(real)]
    return decibels(float(np.square(finite).sum()), float(np.square(off).sum()))


def _shown(outputs: Outputs) -> str:
    """The worst first, and not all of many."""
    ordered = sorted(outputs, key=lambda o: float("inf") if o[1] is None else o[1])
    each = [f"{n} {'no noise' if db is None else f'{db:.1f} dB'}" for n, db in ordered]
    more = f" and {len(each) - SHOWN} more" if len(each) > SHOWN else ""
    return f"{', '.join(each[:SHOWN])}{more}"


def _outputs(names: Sequence[str]) -> str:
    return f"output{'s' if len(names) > 1 else ''} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"'{n}'" for n in names[:SHOWN]) + more
