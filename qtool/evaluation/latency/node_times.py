"""Time per node in several files, by the names of the user's model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.model_file import NodeKernel
from qtool.backends.table import open_file

RUNS = 20


@dataclass(frozen=True)
class NodeTime:
    """Time of one operator of the user's model.

    Attributes:
        kernels: per model, the kernels that run for it; "" if it is fused into another kernel.
        microseconds: per model, of one run: interquartile mean over runs, which excludes moments
            of other load and resolves fractions of the runtime's whole microseconds.
    """

    name: str
    kernels: tuple[str, ...]
    microseconds: tuple[float, ...]


def profile_nodes(
    files: Sequence[Path],
    inputs: Sequence[np.ndarray[Any, Any]],
    *,
    threads: int = 1,
    runs: int = RUNS,
) -> tuple[NodeTime, ...]:
    """Return the time of every node in every file, in the order of the first file.

    Profiling adds time to each node: compare nodes with each other, not their sum with the latency.

    Raises:
        VerificationError: a file does not run.
    """
    opened = [open_file(file) for file in files]
    tables = [file.node_times(inputs, threads, runs) for file in opened]
    known = {name for table in tables for name in table}
    ordered = dict.fromkeys(name for file in opened for name in file.node_names())
    names = [*(n for n in ordered if n in known), *sorted(known - set(ordered))]
    none = NodeKernel("", 0.0)
    return tuple(
        NodeTime(
            name,
            tuple(t.get(name, none).kernels for t in tables),
            tuple(t.get(name, none).microseconds for t in tables),
        )
        for name in names
    )
