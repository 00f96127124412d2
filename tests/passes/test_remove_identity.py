"""What does nothing at inference goes; what only looks so stays."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.passes import run_passes
from qtool.passes.remove_identity import remove_identity
from tests.named_cases import named_cases
from tests.passes.differential import Function, captured, op, rewritten

SHAPE = (2, 3, 4, 4)


@named_cases(
    "model, ops",
    ("identity", lambda: nn.Sequential(nn.Identity(), nn.ReLU()), ["relu"]),
    ("dropout", lambda: nn.Sequential(nn.Dropout(0.5), nn.ReLU()), ["relu"]),
    ("dropout2d", lambda: nn.Sequential(nn.Dropout2d(), nn.ReLU()), ["relu"]),
    (
        "alpha dropout",
        lambda: nn.Sequential(nn.AlphaDropout(), nn.FeatureAlphaDropout(), nn.ReLU()),
        ["relu"],
    ),
    (
        "dropout of nothing",
        lambda: Function(lambda x: F.dropout(x, 0.0, training=True).relu()),
        ["relu"],
    ),
    (
        "copies",
        lambda: Function(lambda x: x.clone().contiguous().detach().type_as(x).relu()),
        ["relu"],
    ),
    ("same dtype", lambda: Function(lambda x: x.float().relu()), ["relu"]),
    ("full slice", lambda: Function(lambda x: x[:, :].relu()), ["relu"]),
    ("same shape", lambda: Function(lambda x: x.view(x.shape[0], 3, 4, 4).relu()), ["relu"]),
    ("nothing else", nn.Dropout, []),
    ("part of it", lambda: Function(lambda x: x[:, 1:].relu()), ["slice", "relu"]),
    ("every second", lambda: Function(lambda x: x[:, ::2].relu()), ["slice", "relu"]),
    ("other dtype", lambda: Function(lambda x: x.double().relu()), ["_to_copy", "relu"]),
    ("shape", lambda: Function(lambda x: x.reshape(-1, 3, 16).relu()), ["reshape", "relu"]),
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
