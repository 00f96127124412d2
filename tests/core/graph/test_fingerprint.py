"""Fingerprints of graphs, and deferred tensors."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph import edit
from qtool.core.graph.deferred import has_deferred, is_deferred, outputs_of, part_of, read_values
from qtool.core.graph.fingerprint import fingerprint
from qtool.core.graph.float_tolerance import float_tolerance
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, FOR_TARGETS, run_passes
from tests.passes.differential import Function


def net(width: int = 3, slope: float = 0.1, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width, bias=bias), nn.LeakyReLU(slope), nn.Linear(width, 2))


class Renamed(nn.Module):
    """The same network under other names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = net()

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as in nn.Sequential
        return self.second(self.act(self.first(input)))


def of(model: nn.Module, size: int = 4, **options: object) -> str:
    graph = capture_module(model.eval(), Batch((torch.ones(size, 3),)), **options)
    return fingerprint(graph.module)


def _nudged() -> nn.Module:
    model = net()
    weight = model[2].weight.data
    weight[1, 2] = torch.nextafter(weight[1, 2], torch.tensor(9.0))
    return model


@pytest.fixture(scope="module")
def expected() -> str:
    return of(net())


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, int], bool]] = {
    "made again": (net, {}, True),
    "captured with another batch": (net, {"size": 7}, True),
    "other names": (Renamed, {}, True),
    "one bit of one weight": (_nudged, {}, False),
    "another width": (lambda: net(width=4), {}, False),
    "another constant": (lambda: net(slope=0.2), {}, False),
    "no bias": (lambda: net(bias=False), {}, False),
    "one layer more": (lambda: nn.Sequential(*net(), nn.ReLU()), {}, False),
    "rounded weights": (lambda: net().half().float(), {}, False),
}


@pytest.mark.parametrize("name", MODELS)
def test_only_the_same_function_has_the_same_fingerprint(name: str, expected: str) -> None:
    model, options, same = MODELS[name]
    assert (of(model(), **options) == expected) == same


SIZES = Function(lambda x: x[: max(x.shape[0] - 2, 1)])
"""Arithmetic on a dynamic size, by functions whose text holds their address."""


def test_the_same_in_every_process() -> None:
    code = (
        "import torch\n"
        "from tests.core.graph.test_fingerprint import SIZES, net, of\n"
        "junk = [torch.zeros(1) for _ in range(1000)]\n"
        "print(of(net()), of(SIZES))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [of(net()), of(SIZES)]


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3.0),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.zeros(0, 2),
        torch.ones(3, 2).T,
    ],
    ids=["a number", "booleans", "bfloat16", "empty", "transposed"],
)
def test_constants_of_every_kind(value: torch.Tensor) -> None:
    constant = Function(lambda x: (x + 1, constant.value.float() * 1))
    constant.value = nn.Buffer(value)
    assert len(of(constant)) == 32


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
