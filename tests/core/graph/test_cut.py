"""Graphs cut into parts, and run level by level."""

from collections.abc import Sequence

import pytest
import torch
from torch import fx, nn

import qtool
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.core.graph.cut import cut
from qtool.core.graph.executor import Executor
from qtool.core.graph.levels import Levels, execution_order, run_by_levels
from qtool.core.graph.node_calls import Values
from qtool.frontends.torch.export_module import capture_module

READS = {1: [0], 2: [0], 3: [1], 4: [0], 5: [3, 4], 6: [5]}
"""1, 2 and 4 read 0; 3 reads 1; 5 adds 3 and 4, 6 reads 5."""


class Fork(nn.Module):
    """The sum of two layers in a row and of a third, and a layer of it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.other, self.head = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.two(self.one(x)) + self.other(x))


def test_stops_come_last_of_what_can_be_computed() -> None:
    assert execution_order(READS, {1, 4, 6}) == [2, 1, 3, 4, 5, 6]


def test_what_does_not_change_each_other_is_a_level() -> None:
    run = Executor(qtool.capture_model(Fork().eval(), torch.zeros(2, 3)).graph)
    one, two, other, head = (run.indices[name] for name in ("one", "two", "other", "head"))
    levels = Levels.of(run, dict.fromkeys((one, two, other, head), ()))
    assert [levels.stops_of(k) for k in range(levels.top + 2)] == [
        [],
        [one, other],
        [two],
        [head],
        [],
    ]
    later = Levels.of(run, {one: (), two: (), other: (two,), head: ()})
    assert [later.stops_of(k) for k in range(1, later.top + 1)] == [[one], [two], [other], [head]]
    assert two in later.alive(2)  # `other` looks at it
    assert one not in later.alive(2)


def test_a_level_keeps_nothing_that_nobody_reads_any_more() -> None:
    layers = [nn.Linear(3, 3) for _ in range(6)]
    graph = qtool.capture_model(nn.Sequential(*layers).eval(), torch.zeros(2, 3)).graph
    run = Executor(graph)
    constants = Levels.of(run, {}).constants
    known: list[list[int]] = []

    def visit(stops: list[int], values: Sequence[Sequence[Values]]) -> dict[int, torch.Tensor]:
        for (row,) in values:
            known.append([i for i, v in enumerate(row) if v is not None and i not in constants])
        return {}

    batch = graph.call_of([torch.ones(2, 3)])
    run_by_levels(run, [batch], dict.fromkeys((run.indices[str(i)] for i in range(6)), ()), visit)
    in_float, quantized = known[::2], known[1::2]
    assert max(map(len, in_float)) == 2  # the input of the layer and its result
    assert max(map(len, quantized)) == 1


class Hourglass(nn.Module):
    """Wide, narrow, wide; the narrow place is what a cut should find. A size is read at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(8, 64), nn.Linear(64, 4), nn.Linear(4, 64)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.parts
        narrow = torch.relu(second(torch.relu(first(x))))
        return third(narrow).reshape(x.shape[0] * 2, 32)


def captured() -> tuple[nn.Module, G.FloatGraph]:
    model = Hourglass().eval()
    return model, capture_module(model, Batch((torch.randn(3, 8),)))


def test_blocks_are_cut_where_least_is_alive_and_compute_the_same() -> None:
    model, whole = captured()
    blocks = cut(whole, 4 * 850)  # two layers, not three
    assert [[b.tensor_name(n) for n in b.outputs] for b in blocks] == [["relu_2"], ["output"]]
    x = torch.randn(5, 8)
    values = {"x": x}
    for block in blocks:
        given = [values[block.tensor_name(n)] for n in block.inputs]
        graph = block.graph(lambda n: G.tensor(whole.module, n).detach(), given)
        values |= dict(zip(graph.outputs, graph.module(*given), strict=True))
    assert torch.equal(values["output"], model(x))


def test_calls_with_more_than_fits_are_alone() -> None:
    _, whole = captured()
    blocks = cut(whole, 1)
    layers = [
        n.target for b in blocks for n in b.calls if n.target is torch.ops.aten.linear.default
    ]
    assert len(layers) == 3
    assert all(sum(c.target in layers for c in b.calls) <= 1 for b in blocks)


def test_sizes_that_only_the_inside_knows_are_refused() -> None:
    _, whole = captured()
    relu = next(n for n in whole.graph.nodes if G.name_of(n) == "relu_2")
    unknown = torch.ops.aten.sym_size.int
    last = next(n for n in reversed(whole.graph.nodes) if n.target is torch.ops.aten.view.default)
    with whole.graph.inserting_after(relu):
        size: fx.Node = whole.graph.call_function(unknown, (relu, 0))
    env = G.fake_mode(whole.graph).shape_env
    size.meta["val"] = env.create_unbacked_symint()
    last.args = (last.args[0], [size, 32])
    with pytest.raises(CaptureError, match="is computed inside the model"):
        cut(whole, 1)


def test_what_gives_several_tensors_is_not_cut_from_who_takes_them() -> None:
    layers = [nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)) for _ in range(3)]
    whole = capture_module(nn.Sequential(*layers).eval(), Batch((torch.randn(2, 2, 9, 9),)))
    norm = torch.ops.aten._native_batch_norm_legit_no_training.default
    assert len(cut(whole, 1 << 20)) == 1
    assert not any(b.calls[-1].target is norm for b in cut(whole, 200))
