"""Whether the integer model is faster than the float one here, and if not, which operators cost it.

Part of every conversion for the runtime of this machine: int8 that is slower than float is nothing
to find out in production.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtool.backends.onnx.export import write_float
from qtool.backends.onnxruntime.cpu import runs_here
from qtool.conversion.quantized import Quantized
from qtool.core.atomic import scratch_folder
from qtool.core.errors import VerificationError
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
    """timing: the float model, then the integer one; one sample (all of the sample that it was
    verified with, where the model runs with no fewer), one thread.

    costly: where the integer model is slower, the operators that lose most to float, most first.
    """

    timing: Timing
    costly: tuple[NodeTime, ...] = ()

    @property
    def ratio(self) -> float:
        """Float time over integer time: the median of paired runs."""
        return self.timing.ratios[1].median

    @property
    def slower(self) -> bool:
        return self.ratio < 1

    def to_json(self) -> dict[str, Any]:
        return {"ratio": self.ratio, "timing": to_json(self.timing), "costly": to_json(self.costly)}

    def __str__(self) -> str:
        plain, integer = (s.median for s in self.timing.models)
        ratio = self.timing.ratios[1]
        return (
            f"{plain:.3f} ms in float, {integer:.3f} ms in int8, {self._samples}, one thread: "
            f"{ratio.median:.2f}x (95 % interval {ratio.low:.2f} to {ratio.high:.2f})"
        )

    @property
    def _samples(self) -> str:
        return "one sample" if self.timing.batch == 1 else f"{self.timing.batch} samples"

    def warning(self) -> str | None:
        """What to say where the integer model is slower, else None."""
        if not self.slower:
            return None
        lines = [f"int8 is slower than float here ({self.ratio:.2f}x); it loses most in"]
        lines += [_cost(node) for node in self.costly]
        advice = "leave those in float with a recipe, or ship the float model"
        return "\n".join([*lines, advice])


def _cost(node: NodeTime) -> str:
    plain, integer = node.microseconds
    kernel = node.kernels[1] or "no kernel of its own"
    return f"  {node.name}: {integer:.0f} us in {kernel}, {plain:.0f} us in float"


def measure_speedup(
    quantized: Quantized, file: str | Path, *, seconds: float = 1.0
) -> Speedup | None:
    """Times an exported file beside its float model; None where its target runs elsewhere.

    Args:
        seconds: how long to time, at least some rounds; sessions and profile come on top.

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
            found = time_files(files, inputs, seconds=seconds, least_rounds=MIN_ROUNDS)
        except VerificationError:  # where one input counts the rows of another, say
            inputs = quantized.sample.arrays()
            found = time_files(files, inputs, seconds=seconds, least_rounds=MIN_ROUNDS)
        if found.ratios[1].median >= 1:
            return Speedup(found)
        nodes = profile_nodes(files, inputs, runs=RUNS)
    losses = sorted(nodes, key=lambda n: n.microseconds[0] - n.microseconds[1])
    costly = [n for n in losses[:MAX_NODES] if n.microseconds[1] > n.microseconds[0]]
    return Speedup(found, tuple(costly))


def _one_sample(graph: FloatGraph, quantized: Quantized) -> list[Any]:
    """One sample where the batch is dynamic; else the inputs as they are."""
    free = [bool(i.shape) and isinstance(i.shape[0], str) for i in graph.inputs]
    return [x[:1] if f else x for x, f in zip(quantized.sample.arrays(), free, strict=True)]
