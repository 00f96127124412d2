"""Time per node in several files, by the names of the user's model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qtool.backends.formats import open_file, open_model
from qtool.backends.model_file import NodeKernel
from qtool.backends.session import positions
from qtool.core import number_texts
from qtool.core.types import Array
from qtool.core.value_names import layers_of_joint

RUNS = 20
QUARTER = 0.25
"""Share of a run's time that the sum of its nodes may be off by."""


@dataclass(frozen=True)
class NodeTime:
    """Time of one operator of the user's model.

    Attributes:
        kernels: per model, the kernels that run for it; "" if it is fused into another kernel.
        microseconds: per model, of one run: the median over runs.
    """

    name: str
    kernels: tuple[str, ...]
    microseconds: tuple[float, ...]


@dataclass(frozen=True)
class Profile:
    """Time of each node at one batch size and number of threads.

    Attributes:
        batch: number of samples.
        threads: number of threads.
        nodes: nodes in the order of the first file.
        phase: part of a decoder's work, see `Timing`.
        differs: a sentence if the nodes of a model do not sum to the time of a run, else "".
    """

    batch: int
    threads: int
    nodes: tuple[NodeTime, ...]
    phase: str = ""
    differs: str = ""


def profile_nodes(
    files: Sequence[Path],
    inputs: Sequence[Array],
    *,
    threads: int = 1,
    runs: int = RUNS,
) -> tuple[NodeTime, ...]:
    """Return the time of every node in every file, in the order of the first file.

    Empty where the runtime of a file has no profile.

    Profiling adds time to each node, and other load more; see `sums_that_differ`.

    Raises:
        VerificationError: a file does not run.
    """
    opened = [open_file(file) for file in files]
    orders = [[*range(len(inputs))]] * len(files)
    if len(inputs) > 1:
        ports = [open_model(file).inputs for file in files]
        orders = [positions(own, ports[0]) for own in ports]
    tables = [
        dict(file.node_times([inputs[i] for i in order], threads, runs))
        for file, order in zip(opened, orders, strict=True)
    ]
    if not all(tables):
        return ()
    known = {name for table in tables for name in table}
    for joint in sorted(known):
        if layers := layers_of_joint(joint, known):
            known -= _join(joint, layers, tables)
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


def _join(joint: str, layers: Sequence[str], tables: Sequence[dict[str, NodeKernel]]) -> set[str]:
    """Count layers that one file computes at once as one in all files; return their names."""
    for table in tables:
        parts = [table.pop(name) for name in (joint, *layers) if name in table]
        if parts:
            kernels = dict.fromkeys(
                kernel for part in parts for kernel in part.kernels.split(" + ")
            )
            spent = sum(part.microseconds for part in parts)
            table[joint] = NodeKernel(" + ".join(kernels), spent)
    return set(layers)


def sums_that_differ(
    nodes: Sequence[NodeTime], models: Sequence[str], milliseconds: Sequence[float]
) -> str:
    """Return a sentence if the nodes of a model do not sum to the time of a run, else "".

    Args:
        nodes: nodes of all models.
        models: their names.
        milliseconds: time of a run of each model, measured without a profile.
    """
    sums = [sum(node.microseconds[i] for node in nodes) / 1000 for i in range(len(models))]
    texts = [
        f"the nodes of {name} sum to {number_texts.milliseconds(total)}, and a run takes "
        f"{number_texts.milliseconds(run)}"
        for name, total, run in zip(models, sums, milliseconds, strict=True)
        if nodes and abs(total - run) > QUARTER * run
    ]
    return "; ".join(texts)
