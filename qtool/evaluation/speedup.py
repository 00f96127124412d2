"""Speed-up of the quantized model over the float model on this machine, and its slowest layers.

Part of every conversion for the runtime of this machine, so that a quantized model slower than
float is noticed before production.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from qtool.backends.formats import by_suffix, open_file, other_runtime, runtime_title
from qtool.backends.runtimes import runs_here
from qtool.conversion.quantized import Quantized
from qtool.core.atomic import scratch_folder
from qtool.core.data import Batch
from qtool.core.errors import PlanError, VerificationError
from qtool.core.option_names import MODEL_SUFFIXES, NATIVE
from qtool.core.records import JsonRecord
from qtool.core.value_names import layers_of_joint
from qtool.evaluation.baseline import Baseline
from qtool.evaluation.latency.decoding import Phase, time_first
from qtool.evaluation.latency.interleaved_timing import FLOAT, STEP, Timing, speed_rows
from qtool.evaluation.latency.node_times import NodeTime
from qtool.planning.plan import MODE_NAMES, Execution
from qtool.planning.targets import target

MIN_ROUNDS = 7
RUNS = 10
MAX_NODES = 5

_QUANTIZED = (Execution.INTEGER, Execution.DYNAMIC, Execution.WEIGHTS)


@dataclass(frozen=True)
class Speedup(JsonRecord):
    """Speed of a quantized model relative to its float model, on one thread.

    Attributes:
        timings: the float model, then the quantized model; of a decoder with a KV cache the prompt,
            then the step. One sample, or the whole batch that the file was verified with if it does
            not run with one.
        costly: if the quantized model is slower: its layers with the largest loss, largest first.
        differs: a sentence if the nodes of a model do not sum to the time of a run, see
            `sums_that_differ`.
        mode: mode of the recipe, a key of `MODE_NAMES`.
        runtime: where the files ran, with its version; "" for ONNX Runtime.
        baseline: the float file, see `Baseline.name`.
        float_bytes: size of the float file that was timed.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("ratio",)

    timings: tuple[Timing, ...]
    costly: tuple[NodeTime, ...] = ()
    mode: str = "static"
    runtime: str = ""
    differs: str = ""
    baseline: str = FLOAT
    float_bytes: int = 0

    @property
    def timing(self) -> Timing:
        """The timing that counts: the step of a decoder with a KV cache."""
        return self.timings[-1]

    @property
    def ratio(self) -> float:
        """Float time / quantized time: the median of paired runs."""
        return self.timing.ratios[1].median

    @property
    def slower(self) -> bool:
        """True if the model is slower in what it is for: weights alone promise fast steps."""
        promised = not self.mode.startswith("weight-only") or self.timing.phase == STEP
        return promised and self.ratio < 1

    def __str__(self) -> str:
        return "\n".join(map(self._line, self.timings))

    def _line(self, timing: Timing) -> str:
        plain, own = (s.median for s in timing.models)
        ratio = timing.ratios[1]
        name = "float" if self.baseline == FLOAT else f"float ({self.baseline})"
        return (
            f"{plain:.3f} ms in {name}, {own:.3f} ms in {MODE_NAMES.get(self.mode, self.mode)}, "
            f"{timing.what}: {ratio.median:.2f}x "
            f"(95 % interval {ratio.low:.2f} to {ratio.high:.2f})"
        )

    def rows(self) -> list[tuple[str, str]]:
        """Return (label, figures) for a summary, those that count first."""
        place = f", in {self.runtime}" if self.runtime else ""
        rows = speed_rows(self.timings, name=self.baseline)
        return [(label, f"{figures}{place}") for label, figures in rows]

    def warning(self) -> str | None:
        """Return a warning if the quantized model is slower, else None."""
        if not self.slower:
            return None
        kind = MODE_NAMES.get(self.mode, self.mode)
        where = f"in {self.runtime}" if self.runtime else "here"
        head = f"{kind} is slower than float {where} ({self.ratio:.2f}x, {self.timing.what})"
        if self.mode.startswith("weight-only"):
            head = f"a step is slower than float {where} ({self.ratio:.2f}x, {self.timing.what})"
        costly = () if self.differs else self.costly  # by a profile that is off
        if costly:
            head += "; layers that lose most:"
        advice = "`qtool tune` measures files with other layers in float, and weighs their accuracy"
        return "\n".join([head, *map(_cost, costly), advice])


_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "QUANTIZE")
"""Kernels of an input that the float model takes as it is."""


def _cost(node: NodeTime) -> str:
    plain, own = node.microseconds
    if not node.kernels[0] and node.kernels[1] in _ROUNDING:
        return f"  input '{node.name}': {own:.0f} us to quantize it"
    kernel = node.kernels[1] or "a kernel of a neighbour"
    return f"  {node.name}: {own:.0f} us in {kernel}, {plain:.0f} us in float"


def untimed_reason(target_name: str, suffix: str = MODEL_SUFFIXES[0]) -> str:
    """Return why files for a target cannot be timed on this machine, or "".

    Args:
        target_name: name of the target.
        suffix: file name extension of the files.
    """
    chosen, used = target(target_name), by_suffix(suffix)
    if used.suffix != MODEL_SUFFIXES[0]:
        try:
            used.check_measurable(chosen)
        except PlanError:
            return f"files for {target_name} run on another processor"
        except VerificationError as error:
            return str(error)
        return ""
    if not runs_here(chosen):
        return f"files for {target_name} do not run in ONNX Runtime here"
    return other_runtime(chosen.timed_in).problem() if chosen.timed_in else ""


def timing_runtime(target_name: str, suffix: str = MODEL_SUFFIXES[0]) -> str:
    """Return the runtime in which files for a target are timed, see `open_model`."""
    return (target(target_name).timed_in if suffix == MODEL_SUFFIXES[0] else "") or NATIVE


def measure_speedup(
    quantized: Quantized, file: str | Path, *, seconds: float = 1.0
) -> Speedup | None:
    """Time an exported file against its float model; None if there is an `untimed_reason`.

    Float is the ONNX file that the model was read from, or a file of the same format, see
    `Baseline`. The files of a target whose speed counts in another runtime are timed there.

    Args:
        seconds: duration of each timing, at least MIN_ROUNDS rounds; sessions and the profile take
            additional time.

    Raises:
        VerificationError: ONNX Runtime refuses one of the files.
    """
    name, mode, path = quantized.plan.target, quantized.plan.recipe.mode, Path(file)
    if untimed_reason(name, path.suffix.lower()):
        return None
    suffix = by_suffix(path.suffix).suffix
    batches = quantized.reference.cut(quantized.sample, 1), quantized.sample
    with scratch_folder() as folder:
        baseline = Baseline(quantized.captured, folder, name, suffix)
        files = baseline.timed, path
        speedup, phase = compare_speed(files, batches, name, mode, seconds, baseline.name)
        if not speedup.slower or timing_runtime(name, suffix) != NATIVE:  # no profile there
            return speedup
        names = ("float", MODE_NAMES.get(mode, mode))
        profile = phase.profile([baseline.profiled, path], names, speedup.timing, RUNS)
    return replace(speedup, costly=_losses(profile.nodes, quantized), differs=profile.differs)


def compare_speed(
    files: tuple[Path, Path],
    batches: Sequence[Batch],
    target_name: str,
    mode: str,
    seconds: float,
    baseline: str,
) -> tuple[Speedup, Phase]:
    """Time a float file and a quantized one; return also what was timed.

    Args:
        files: both, of one format.
        batches: inputs, of which the first that they take is timed.
        target_name: name of the target, without an `untimed_reason`.
        mode: mode of the recipe.
        seconds: as for `measure_speedup`.
        baseline: what the float file is called.

    Raises:
        VerificationError: the runtime refuses one of the files.
    """
    suffix = by_suffix(files[1].suffix).suffix
    place, arrays = timing_runtime(target_name, suffix), [batch.arrays() for batch in batches]
    how: dict[str, Any] = {"runtime": place, "seconds": seconds, "least_rounds": MIN_ROUNDS}
    timings, phase = time_first(files, arrays, **how)
    size = sum(f.stat().st_size for f in open_file(files[0]).parts)
    title = runtime_title(place, suffix)
    return Speedup(timings, (), mode, title, baseline=baseline, float_bytes=size), phase


def _losses(nodes: Sequence[NodeTime], model: Quantized) -> tuple[NodeTime, ...]:
    """Return the quantized layers and inputs that lose most; others are in float already."""
    quantized = {d.node for d in model.plan.nodes if d.execution in _QUANTIZED}
    quantized |= {i.name for i in model.reference.inputs}
    losses = sorted(
        (n for n in nodes if n.name in quantized or layers_of_joint(n.name, quantized)),
        key=lambda n: n.microseconds[0] - n.microseconds[1],
    )
    return tuple(n for n in losses[:MAX_NODES] if n.microseconds[1] > n.microseconds[0])
