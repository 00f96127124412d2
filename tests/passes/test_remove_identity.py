"""What does nothing at inference goes; what only looks so stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.passes import run_passes
from qtool.passes.remove_identity import remove_identity
from tests.passes.differential import Function, captured, op, rewritten

SHAPE = (2, 3, 4, 4)


@pytest.mark.parametrize(
    ("model", "ops"),
    [
        pytest.param(lambda: nn.Sequential(nn.Identity(), nn.ReLU()), ["relu"], id="identity"),
        pytest.param(lambda: nn.Sequential(nn.Dropout(0.5), nn.ReLU()), ["relu"], id="dropout"),
        pytest.param(lambda: nn.Sequential(nn.Dropout2d(), nn.ReLU()), ["relu"], id="dropout2d"),
        pytest.param(
            lambda: nn.Sequential(nn.AlphaDropout(), nn.FeatureAlphaDropout(), nn.ReLU()),
            ["relu"],
            id="alpha dropout",
        ),
        pytest.param(
            lambda: Function(lambda x: F.dropout(x, 0.0, training=True).relu()),
            ["relu"],
            id="dropout of nothing",
        ),
        pytest.param(
            lambda: Function(lambda x: x.clone().contiguous().detach().type_as(x).relu()),
            ["relu"],
            id="copies",
        ),
        pytest.param(lambda: Function(lambda x: x.float().relu()), ["relu"], id="same dtype"),
        pytest.param(lambda: Function(lambda x: x[:, :].relu()), ["relu"], id="full slice"),
        pytest.param(
            lambda: Function(lambda x: x.view(x.shape[0], 3, 4, 4).relu()),
            ["relu"],
            id="same shape",
        ),
        pytest.param(nn.Dropout, [], id="nothing else"),
        pytest.param(
            lambda: Function(lambda x: x[:, 1:].relu()), ["slice", "relu"], id="part of it"
        ),
        pytest.param(
            lambda: Function(lambda x: x[:, ::2].relu()), ["slice", "relu"], id="every second"
        ),
        pytest.param(
            lambda: Function(lambda x: x.double().relu()), ["_to_copy", "relu"], id="other dtype"
        ),
        pytest.param(
            lambda: Function(lambda x: x.reshape(-1, 3, 16).relu()), ["reshape", "relu"], id="shape"
        ),
    ],
)
def test_removal(model: Callable[[], nn.Module], ops: list[str]) -> None:
    result = rewritten(model(), SHAPE, passes=[remove_identity])
    assert [op for op in result.ops() if op != "sym_size"] == ops


def test_count() -> None:
    graph = captured(nn.Sequential(nn.ReLU(), nn.Sigmoid(), nn.Tanh()), SHAPE)
    for node in G.calls(graph.graph):
        copy = G.add_call(node, torch.ops.aten.clone.default, node.args, "copy")
        node.args = (copy,)
    assert run_passes(graph.module, [remove_identity]) == {"remove_identity": 3}
    assert [op(n) for n in G.calls(graph.graph)] == ["relu", "sigmoid", "tanh"]
