"""Latency of several sessions, honestly compared: interleaved runs in one process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.verify.runtime import feeds, session

__all__ = ["Latency", "interleaved"]


@dataclass(frozen=True)
class Latency:
    """milliseconds: median run of each file. ratios: first file / each file, paired median."""

    milliseconds: tuple[float, ...]
    ratios: tuple[float, ...]
    rounds: int


def interleaved(
    files: Sequence[str | Path],
    inputs: Sequence[np.ndarray[Any, Any]],
    *,
    threads: int = 1,
    seconds: float = 2.0,
    least_rounds: int = 15,
) -> Latency:
    """Times ONNX files on the same batch, one run of each in turn, until `seconds` have passed.

    A ratio is the median over rounds of (time of the first file / time of this file): both runs of
    a pair see the same machine, so that other load falls out.
    """
    sessions = [session(f, threads=threads) for f in files]
    fed = [feeds(s, list(inputs)) for s in sessions]
    for model, feed in zip(sessions, fed, strict=True):
        for _ in range(3):
            model.run(None, feed)
    times: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(times) < least_rounds or time.perf_counter() < end:
        row = []
        for model, feed in zip(sessions, fed, strict=True):
            start = time.perf_counter()
            model.run(None, feed)
            row.append(time.perf_counter() - start)
        times.append(row)
    table = np.array(times)
    medians = 1000 * np.median(table, axis=0)
    ratios = np.median(table[:, :1] / table, axis=0)
    return Latency(tuple(map(float, medians)), tuple(map(float, ratios)), len(times))
