"""Speed-up of the integer model over the float model on this machine, and its slowest operators.

Part of every conversion for the runtime of this machine, so that an int8 model slower than float is
noticed before production.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from qtool.backends.onnx.export import write_float
from qtool.backends.onnxruntime.cpu import runs_here
from qtool.conversion.quantized import Quantized
from qtool.core.atomic import scratch_folder
from qtool.core.errors import VerificationError
from qtool.core.formats import milliseconds, times
from qtool.core.graph import FloatGraph
from qtool.core.records import to_json
from qtool.evaluation.latency.interleaved_timing import Timing, time_files
from qtool.evaluation.latency.node_times import NodeTime, profile_nodes
from qtool.planning.targets import target

MIN_ROUNDS = 7
RUNS = 10
MAX_NODES = 5


@dataclass(frozen=True)
class Speedup:
    """Speed of an integer model relative to its float model, on one thread.

    Attributes:
        timing: the float model, then the integer model; one sample, or the whole batch that it was
            verified with if the model does not run with one.
        costly: if the integer model is slower: the operators with the largest loss, largest first.
    """

    JSON_PROPERTIES: ClassVar = ("ratio",)

    timing: Timing
    costly: tuple[NodeTime, ...] = ()

    @property
    def ratio(self) -> float:
        """Float time / integer time: the median of paired runs."""
        return self.timing.ratios[1].median

    @property
    def slower(self) -> bool:
        return self.ratio < 1

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = to_json(self)
        return fields

    def __str__(self) -> str:
        plain, integer = (s.median for s in self.timing.models)
        ratio = self.timing.ratios[1]
        return (
            f"{plain:.3f} ms in float, {integer:.3f} ms in int8, {self._samples}, one thread: "
            f"{ratio.median:.2f}x (95 % interval {ratio.low:.2f} to {ratio.high:.2f})"
        )

    def row(self) -> str:
        """Return the figures for a summary."""
        plain, integer = (milliseconds(s.median) for s in self.timing.models)
        ratio = f"{times(self.ratio)} as fast as float"
        return f"{integer}, {ratio} ({plain}; {self._samples}, one thread)"

    @property
    def _samples(self) -> str:
        return "one sample" if self.timing.batch == 1 else f"{self.timing.batch} samples"

    def warning(self) -> str | None:
        """Return a warning if the integer model is slower, else None."""
        if not self.slower:
            return None
        lines = [f"int8 is slower than float here ({self.ratio:.2f}x); slowest operators:"]
        lines += [_cost(node) for node in self.costly]
        advice = "try `qtool tune`, or keep these layers in float (see --recipe)"
        return "\n".join([*lines, advice])


def _cost(node: NodeTime) -> str:
    plain, integer = node.microseconds
    kernel = node.kernels[1] or "a kernel of a neighbour"
    return f"  {node.name}: {integer:.0f} us in {kernel}, {plain:.0f} us in float"


def measure_speedup(
    quantized: Quantized, file: str | Path, *, seconds: float = 1.0
) -> Speedup | None:
    """Time an exported file against its float model; None if its target does not run here.

    Args:
        seconds: duration of the timing, at least MIN_ROUNDS rounds; sessions and the profile take
            additional time.

    Raises:
        VerificationError: ONNX Runtime refuses one of the files.
    """
    chosen = target(quantized.plan.target)
    if not runs_here(chosen):
        return None
    inputs = _one_sample(quantized.reference, quantized)
    with scratch_folder() as folder:
        plain = write_float(quantized.reference, folder / "float.onnx", chosen.name)
        files = [plain, Path(file)]
        try:
            timing = time_files(files, inputs, seconds=seconds, least_rounds=MIN_ROUNDS)
        except VerificationError:  # one input may hold the number of rows of another
            inputs = quantized.sample.arrays()
            timing = time_files(files, inputs, seconds=seconds, least_rounds=MIN_ROUNDS)
        if timing.ratios[1].median >= 1:
            return Speedup(timing)
        nodes = profile_nodes(files, inputs, runs=RUNS)
    losses = sorted(nodes, key=lambda n: n.microseconds[0] - n.microseconds[1])
    costly = [n for n in losses[:MAX_NODES] if n.microseconds[1] > n.microseconds[0]]
    return Speedup(timing, tuple(costly))


def _one_sample(graph: FloatGraph, quantized: Quantized) -> list[Any]:
    """Return one sample if the batch size is dynamic, else the whole batch."""
    dynamic = [bool(i.shape) and isinstance(i.shape[0], str) for i in graph.inputs]
    arrays = zip(quantized.sample.arrays(), dynamic, strict=True)
    return [x[:1] if cut else x for x, cut in arrays]
