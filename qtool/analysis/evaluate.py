"""Float and int8 side by side: accuracy, agreement, error, size, latency, integer share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.analysis.latency import interleaved
from qtool.data import Batch
from qtool.errors import DataError
from qtool.export import write_float
from qtool.graph import FloatGraph
from qtool.runtimes.onnxruntime import run, session
from qtool.verification import audit

__all__ = ["Evaluation", "Side", "evaluate", "sqnr"]


@dataclass(frozen=True)
class Side:
    """One of the two models. accuracy: top-1, 0 to 1, None without labels. latency_ms: a batch."""

    accuracy: float | None
    size_bytes: int
    latency_ms: float
    integer_mac_share: float


@dataclass(frozen=True)
class Evaluation:
    """agreement: share of samples with the same top-1. sqnr_db: of all outputs. speedup: paired."""

    samples: int
    batch: int
    threads: int
    float_: Side
    int8: Side
    agreement: float
    sqnr_db: float
    speedup: float

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        found["float"] = found.pop("float_")
        return found


def sqnr(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any]) -> float:
    """Signal to quantization noise ratio in dB: 10 log10(sum x^2 / sum (x - y)^2)."""
    signal = float(np.square(expected.astype(np.float64)).sum())
    noise = float(np.square(expected.astype(np.float64) - actual).sum())
    if noise == 0.0:
        return float("inf")
    return 10 * float(np.log10(signal / noise)) if signal > 0 else float("-inf")


def evaluate(
    int8_file: str | Path,
    graph: FloatGraph,
    data: Iterable[Batch],
    labels: np.ndarray[Any, Any] | None = None,
    *,
    threads: int = 1,
    seconds: float = 2.0,
) -> Evaluation:
    """Runs the float model and an int8 file in ONNX Runtime on the same batches.

    Args:
        int8_file: the exported model. graph: the float model, captured.
        data: batches in the order of `labels`.
        labels: [samples] class numbers; the first output then holds [samples, classes] scores.

    Raises:
        DataError: no data, or a different number of labels.
    """
    with tempfile.TemporaryDirectory() as folder:
        float_file = write_float(graph, Path(folder) / "float.onnx")
        files = [float_file, Path(int8_file)]
        sessions = [session(f) for f in files]
        outputs: list[list[np.ndarray[Any, Any]]] = [[], []]
        first: list[np.ndarray[Any, Any]] = []
        for index, batch in enumerate(data):
            arrays = [t.numpy() for _, t in graph.bind(batch, index).tensors()]
            first = first or arrays
            for kept, model in zip(outputs, sessions, strict=True):
                kept.append(run(model, arrays)[0])
        if not first:
            raise DataError("the evaluation data is empty; give at least one batch")
        expected, actual = (np.concatenate(o) for o in outputs)
        accuracies = [_accuracy(values, labels) for values in (expected, actual)]
        latency = interleaved(files, first, threads=threads, seconds=seconds)
        sides = [
            Side(
                accuracies[i],
                file.stat().st_size,
                latency.milliseconds[i],
                audit(file).share if i else 0.0,
            )
            for i, file in enumerate(files)
        ]
    same = float((_top1(expected) == _top1(actual)).mean())
    return Evaluation(
        len(expected),
        len(first[0]),
        threads,
        sides[0],
        sides[1],
        same,
        sqnr(expected, actual),
        latency.ratios[1],
    )


def _top1(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = scores.reshape(len(scores), -1).argmax(1)
    return found


def _accuracy(scores: np.ndarray[Any, Any], labels: Sequence[Any] | Any) -> float | None:
    if labels is None:
        return None
    if len(labels) != len(scores):
        raise DataError(f"{len(labels)} labels for {len(scores)} samples")
    return float((_top1(scores) == np.asarray(labels)).mean())
