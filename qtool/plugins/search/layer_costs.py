"""Time of each node in each form, in microseconds of the runtime that files are timed in.

One file per choice, with the same choice for all layers, is profiled by the runtime; the node times
are scaled to the latency of the file without a profile. Where a target's files are timed in another
runtime, that is the latency there, and nodes have their shares of a profile here: WebAssembly gives
none. Boundaries between integers and floats
(rounding, and the layout of float kernels) have no kernel of their own: their cost is the time of
two files with alternating choices minus that of their nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qtool.core.option_names import NATIVE
from qtool.core.types import Array
from qtool.evaluation.latency.interleaved_timing import time_files
from qtool.evaluation.latency.node_times import NodeTime, profile_nodes
from qtool.plugins.search.candidate_files import measure_speedups, repeat_sessions
from qtool.plugins.search.choices import FLOAT, Config
from qtool.plugins.search.cost_model import CostModel, Items

RUNS = 10  # in each profile
MIN_ROUNDS = 11


@dataclass(frozen=True)
class NodeCosts:
    """Measured times in microseconds.

    Attributes:
        float_time: time of the float model.
        times: time of each node item, minus its time in float.
        edge, element: cost of a boundary between integers and floats, and of each element there.
    """

    float_time: float
    times: tuple[float, ...]
    edge: float
    element: float


def uniform_configs(items: Items) -> list[Config]:
    """Return one configuration per choice, with that choice for all groups that have it."""
    space = items.space
    names = dict.fromkeys(c for g in space.groups for c in g.choices)
    return [space.config(name) for name in names if name != FLOAT]


def measure_costs(
    items: Items,
    float_files: tuple[Path, Path],
    write: Callable[[Config], Path],
    inputs: Sequence[Array],
    seconds: float,
    runtime: str = NATIVE,
) -> NodeCosts:
    """Time files of a space.

    Args:
        float_files: the float model to time, and one with the user's names to profile.
        write: returns the file of a configuration.
        inputs: arrays of one run.
        seconds: duration of the timing of each file.
        runtime: where files are timed, see `open_model`.

    Raises:
        VerificationError: the runtime refuses a file.
    """
    space, pure = items.space, uniform_configs(items)
    mixed = [c for c in space.alternating if not space.is_float(c)]
    float_file, named = float_files
    files = [named, *map(write, pure)]
    both = [float_file, *files[1:], *map(write, mixed)]
    alone = time_files(
        [float_file], inputs, seconds=seconds, least_rounds=MIN_ROUNDS, runtime=runtime
    )
    ratios = measure_speedups(float_file, both[1:], inputs, seconds, runtime)
    whole = alone.models[0].median * 1000 / np.array([1.0, *(r.median for r in ratios)])
    tables = repeat_sessions(lambda: profile_nodes(files, inputs, runs=RUNS), seconds * len(files))
    microseconds = np.median([_shares(table) for table in tables], 0) * whole[: len(files)]
    by_name = {row.name: microseconds[i] for i, row in enumerate(tables[0])}
    times = _form_times(items, pure, by_name)
    flat = CostModel(
        items=items,
        errors=np.zeros(len(items.points)),
        times=times,
        float_time=float(whole[0]),
        boundary_us=0.0,
        boundary_element_us=0.0,
        sizes=np.zeros(len(items.choice_points)),
        float_size=0.0,
        error_scales=np.ones(len(items.space.groups)),
    )
    edge, element = _boundary_costs(flat, mixed, whole[len(files) :]) if mixed else (0.0, 0.0)
    return NodeCosts(float(whole[0]), tuple(map(float, times)), edge, element)


def _shares(table: Sequence[NodeTime]) -> Array:
    """Return [nodes, files] share of the time of each file."""
    microseconds = np.array([row.microseconds for row in table])
    shares: Array = microseconds / microseconds.sum(0)
    return shares


def _form_times(items: Items, pure: Sequence[Config], microseconds: dict[str, Array]) -> Array:
    """Return the time of each form in the first file that has it, minus its time in float."""
    times = np.zeros(len(items.nodes))
    for number, config in reversed(list(enumerate(pure, 1))):
        spread = items.one_hot(np.array([config]))
        there = (spread @ items.choice_nodes + items.fixed_nodes)[0] > 0
        for i in np.flatnonzero(there):
            took = microseconds.get(items.nodes[i][0])
            if took is not None:
                times[i] = took[number] - took[0]
    return times


def _boundary_costs(flat: CostModel, mixed: Sequence[Config], whole: Array) -> tuple[float, float]:
    """Return the cost of a boundary and of each element there.

    The time of the files beyond that of their nodes, at least 0, is divided in half between the
    boundaries and their elements.
    """
    items, configs = flat.items, np.array(mixed)
    spread = items.one_hot(configs)
    points, nodes = (
        (spread @ wants + fixed > 0).astype(np.float32)
        for wants, fixed in (
            (items.choice_points, items.fixed_points),
            (items.choice_nodes, items.fixed_nodes),
        )
    )
    edges, elements = flat.count_boundaries(points, nodes)
    _, predicted, _ = flat.predict(configs)
    beyond = max(0.0, float((whole - predicted).sum()))
    if not edges.sum():
        return 0.0, 0.0
    return beyond / 2 / float(edges.sum()), beyond / 2 / float(max(1.0, elements.sum()))
