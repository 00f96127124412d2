"""What each layer costs in each form: microseconds on this machine's runtime.

A file is written for each scheme that all layers can have, and the runtime's own profile of it
says what each node takes; the sums are brought to what the whole file takes without a profile. What
it costs where codes meet floats (rounding, and the other layout that float kernels want) stands in
no single kernel: it is what two files of neighbours unlike each other take beyond their nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.core.types import Array
from qtool.evaluation.latency.interleaved_timing import thread_clock, time_files
from qtool.evaluation.latency.node_times import NodeTime, profile_nodes
from qtool.search.choices import FLOAT, Config
from qtool.search.cost_model import CostModel, Items
from qtool.search.measured_speedups import measure_speedups, repeat_sessions

RUNS = 10  # in each profile
MIN_ROUNDS = 11


@dataclass(frozen=True)
class NodeCosts:
    """float_time: microseconds of the float model. times: by the items of nodes, what a form costs
    more than float. edge, element: of a place where codes meet floats, and of each element there.
    """

    float_time: float
    times: tuple[float, ...]
    edge: float
    element: float


def uniform_configs(items: Items) -> list[Config]:
    """The configurations to time beside float: each choice for all groups that have it."""
    space = items.space
    names = dict.fromkeys(c for g in space.groups for c in g.choices)
    return [space.config(name) for name in names if name != FLOAT]


def measure_costs(
    items: Items,
    float_file: Path,
    write: Callable[[Config], Path],
    inputs: Sequence[np.ndarray[Any, Any]],
    seconds: float,
) -> NodeCosts:
    """Times files of a space.

    Args:
        write: makes the file of a configuration.
        inputs: of one run, as arrays.
        seconds: to time each file for.

    Raises:
        VerificationError: the runtime refuses a file.
    """
    space, pure = items.space, uniform_configs(items)
    mixed = [c for c in space.alternating if not space.is_float(c)]
    files = [float_file, *map(write, pure)]
    both = [*files, *map(write, mixed)]
    alone = time_files(
        [float_file], inputs, seconds=seconds, least_rounds=MIN_ROUNDS, clock=thread_clock
    )
    ratios = measure_speedups(float_file, both[1:], inputs, seconds)
    whole = alone.models[0].median * 1000 / np.array([1.0, *(r.median for r in ratios)])
    tables = repeat_sessions(lambda: profile_nodes(files, inputs, runs=RUNS), seconds * len(files))
    spent = np.median([_shares(table) for table in tables], 0) * whole[: len(files)]
    by_name = {row.name: spent[i] for i, row in enumerate(tables[0])}
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
    """[nodes, files] of what each file takes."""
    spent = np.array([row.microseconds for row in table])
    found: Array = spent / spent.sum(0)
    return found


def _form_times(items: Items, pure: Sequence[Config], spent: dict[str, Array]) -> Array:
    """What each form takes in the first file that has it, beyond float."""
    found = np.zeros(len(items.nodes))
    for number, config in reversed(list(enumerate(pure, 1))):
        spread = items.one_hot(np.array([config]))
        there = (spread @ items.choice_nodes + items.fixed_nodes)[0] > 0
        for i in np.flatnonzero(there):
            took = spent.get(items.nodes[i][0])
            if took is not None:
                found[i] = took[number] - took[0]
    return found


def _boundary_costs(flat: CostModel, mixed: Sequence[Config], whole: Array) -> tuple[float, float]:
    """Shares what the files take beyond their nodes between the places and their elements, half
    each; at least nothing."""
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
    _, reckoned, _ = flat.predict(configs)
    beyond = max(0.0, float((whole - reckoned).sum()))
    if not edges.sum():
        return 0.0, 0.0
    return beyond / 2 / float(edges.sum()), beyond / 2 / float(max(1.0, elements.sum()))
