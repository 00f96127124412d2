"""Graphs cut into blocks: where least is alive, to the same function."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.core.graph.cut import cut
from qtool.frontends.torch.export_module import capture_module


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
