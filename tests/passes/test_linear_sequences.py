"""Linear layers on sequences: of each step one over all; on more than two dimensions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import run_passes
from qtool.passes.flatten_linear import flatten_linear
from tests.named_cases import named_cases
from tests.passes.differential import CANONICAL, Function, assert_same, rewritten

STEPS = (2, 5, 6)
Parts = Callable[[torch.Tensor, nn.Module], list[torch.Tensor]]


def count(parts: Parts, axis: int = 1) -> int:
    model = Function(lambda x, layer: torch.cat(parts(x, layer), axis), nn.Linear(6, 4))
    return rewritten(model, STEPS, passes=CANONICAL).counts["unrolled_steps"]


def test_the_steps_are_one_layer() -> None:
    def unrolled(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        return torch.stack([F.relu(layer(x[:, t])) for t in range(5)], 1)

    result = rewritten(Function(unrolled, nn.Linear(6, 4)), STEPS, passes=CANONICAL)
    assert result.counts["unrolled_steps"] == 1
    assert result.ops().count("linear") == 1
    assert "cat" not in result.ops()


def test_slices_with_a_product_and_a_sum_as_files_have_them() -> None:
    def unrolled(x: torch.Tensor) -> torch.Tensor:
        x = x.permute(1, 0, 2)
        rows = [x[t : t + 1].squeeze(0) @ weight + bias for t in range(5)]
        return torch.cat([row.unsqueeze(0) for row in rows])

    weight, bias = torch.randn(6, 4), torch.randn(4)
    result = rewritten(Function(unrolled), STEPS, passes=CANONICAL)
    assert result.counts["unrolled_steps"] == 1
    assert result.ops().count("linear") == 1


@named_cases(
    "parts",
    ("order", lambda x, layer: [layer(x[:, t]).unsqueeze(1) for t in (0, 1, 2, 4, 3)]),
    ("not all", lambda x, layer: [layer(x[:, t]).unsqueeze(1) for t in range(4)]),
    (
        "different factors",
        lambda x, layer: [(layer(x[:, t]) * (t + 1)).unsqueeze(1) for t in range(5)],
    ),
    (
        "rows that depend on each other",
        lambda x, layer: [F.softmax(layer(x[:, t]), 0).unsqueeze(1) for t in range(5)],
    ),
)
def test_what_is_not_one_layer(parts: Parts) -> None:
    assert count(parts) == 0


@named_cases(
    "shape, count", ("vectors", (2, 5), 0), ("sequences", (2, 7, 5), 1), ("maps", (2, 3, 4, 5), 1)
)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_ranks(shape: tuple[int, ...], count: int, bias: bool) -> None:
    result = rewritten(nn.Linear(5, 3, bias=bias), shape, passes=[flatten_linear])
    assert result.counts == {"flatten_linear": count}
    linears = [n for n in G.calls(result.graph.graph) if "linear" in str(n.target)]
    assert [G.rank(n) for n in linears] == [2]


def test_names_tell_the_layer() -> None:
    result = rewritten(
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)),
        (2, 7, 5),
        passes=[flatten_linear],
    )
    names = [G.name_of(n) for n in G.calls(result.graph.graph)]
    assert names == ["0.flatten", "0", "1", "2", "2.unflatten"]  # reshapes that meet are joined


def test_a_dynamic_length() -> None:
    model = nn.Linear(5, 3).eval()
    graph = capture_module(
        model, Batch((torch.randn(2, 7, 5),)), {"input": {0: "batch", 1: "time"}}
    )
    assert run_passes(graph.module, [flatten_linear]) == {"flatten_linear": 1}
    for batch, time in ((2, 7), (3, 11), (1, 1)):
        assert_same(model, graph.module, (torch.randn(batch, time, 5),))
