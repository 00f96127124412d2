"""Linear layers on more than two dimensions, and their dynamic sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import run_passes
from qtool.passes.flatten_linear import flatten_linear
from tests.named_cases import named_cases
from tests.passes.differential import assert_same, rewritten


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
