"""Deferred tensors: passes read none, and what they fold is what they fold of values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph import edit
from qtool.core.graph.deferred import has_deferred, is_deferred, outputs_of, part_of, read_values
from qtool.core.graph.float_tolerance import float_tolerance
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, FOR_TARGETS, run_passes

TARGETS = ("batch_norm_as_conv", "merge_groups", "pad_channels")


class Folds(nn.Module):
    """A layer for each pass that computes weights."""

    def __init__(self) -> None:
        super().__init__()
        self.rgb, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.free, self.groups = nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3, groups=8, bias=False)
        self.scale, self.packed = nn.Parameter(torch.rand(16)), nn.Linear(16, 32)
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.groups(self.free(torch.relu(self.norm(self.rgb(x))) + 1.0))
        x = x.mean((2, 3)) @ (self.packed.weight[:16] * 2.0).t() * self.scale
        return self.lstm(x.reshape(len(x), 2, 8))[0]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> tuple[G.FloatGraph, G.FloatGraph, list[str]]:
    """A graph with its values, the same with deferred ones, and the attributes that were read."""
    monkeypatch.setattr(edit, "SMALL", 0)
    torch.manual_seed(0)
    net = Folds().eval()
    for norm in (net.norm, net.free):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    graph = capture_module(net, Batch((torch.randn(4, 3, 9, 9),)))
    reads, deferred = list[str](), replace(graph, module=G.clone(graph.module))

    def read(name: str, values: torch.Tensor, slices: tuple[slice, ...] | None) -> torch.Tensor:
        reads.append(name)
        return values if slices is None else values[slices]

    G.defer_tensors(deferred.module, read)
    assert not reads
    return graph, deferred, reads


def test_passes_compute_what_is_read(graphs: tuple[G.FloatGraph, G.FloatGraph, list[str]]) -> None:
    graph, deferred, reads = graphs
    passes = [*CANONICAL, *(FOR_TARGETS[name] for name in TARGETS)]
    counts = run_passes(graph.module, passes)
    assert run_passes(deferred.module, passes) == counts
    folds = ("recurrent", "fold_constants", "fold_batch_norm", "fold_affine", *TARGETS)
    assert all(counts[name] for name in folds)
    assert not reads
    nodes = [n for g in (graph, deferred) for n in g.graph.nodes if n.op == "get_attr"]
    half = len(nodes) // 2
    for one, other in zip(nodes[:half], nodes[half:], strict=True):
        assert (G.name_of(one), one.target) == (G.name_of(other), other.target)
        values, stored = G.tensor(graph.module, one), G.tensor(deferred.module, other)
        assert isinstance(stored, nn.Parameter) == isinstance(values, nn.Parameter)
        assert stored.untyped_storage().nbytes() <= 8
        assert torch.equal(read_values(stored), values)
        assert G.shape(other) == G.shape(one)


def test_networks_are_compared_tensor_by_tensor(
    graphs: tuple[G.FloatGraph, G.FloatGraph, list[str]],
) -> None:
    graph, deferred, reads = graphs
    args, kwargs = graph.example
    assert has_deferred(deferred.module)
    pairs = zip(
        outputs_of(graph.module, args, kwargs),
        outputs_of(deferred.module, args, kwargs),
        strict=True,
    )
    assert all(torch.equal(a, b) for a, b in pairs)
    assert sorted(set(reads)) == sorted(
        {str(n.target) for n in graph.graph.nodes if n.op == "get_attr"}
    )
    noise = [float_tolerance(g.module, args, kwargs) for g in (graph, deferred)]
    assert 0 < noise[1] < 3 * noise[0] < 9 * noise[1]


def test_a_part_of_a_deferred_tensor_reads_that_part() -> None:
    asked = list[object]()

    def read(slices: tuple[slice, ...] | None) -> torch.Tensor:
        asked.append(slices)
        return values if slices is None else values[slices]

    values = torch.arange(12.0).reshape(3, 4)
    rows = part_of(G.as_parameter(edit.defer(values, read)), (slice(1, 3),))
    assert is_deferred(rows)
    assert torch.equal(read_values(rows), values[1:3])
    assert torch.equal(read_values(rows, (slice(0, 1),)), values[1:2])
    assert asked == [(slice(1, 3),)] * 2
