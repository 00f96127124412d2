"""One spelling per operator, and none that does nothing."""

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.passes import CANONICAL, GraphPass, run_passes
from qtool.passes.fold_constants import remove_identity
from tests.models.small import NETWORKS
from tests.named_cases import named_cases
from tests.passes.differential import (
    Function,
    assert_same,
    captured,
    captured_network,
    op,
    rewritten,
)

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


X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


@named_cases(
    "wrong",
    ("off by a little", lambda x: x * 2 + 1e-3),
    ("another shape", lambda x: (x * 2)[:1]),
    ("another dtype", lambda x: (x * 2).double()),
    ("another structure", lambda x: (x * 2,)),
    ("NaN", lambda x: x * float("nan")),
)
def test_assert_same_can_fail(wrong: Callable[[torch.Tensor], object]) -> None:
    model = Function(lambda x: x * 2)
    assert_same(model, Function(lambda x: x + x), (X,))
    with pytest.raises(AssertionError):
        assert_same(model, Function(wrong), (X,))


def _scale_a_weight(module: fx.GraphModule) -> int:
    next(module.parameters()).data *= 1.001
    return 1


def _fix_the_batch(module: fx.GraphModule) -> int:
    for node in G.calls(module.graph):
        if node.target is torch.ops.aten.reshape.default:
            node.args = (node.args[0], [3, -1])
    return 1


@named_cases(
    "break_it, model",
    ("wrong numbers", _scale_a_weight, NETWORKS["conv_bn_relu"].make()),
    ("a fixed batch", _fix_the_batch, nn.Flatten()),
)
def test_rewritten_can_fail(break_it: Callable[[fx.GraphModule], int], model: nn.Module) -> None:
    rewritten(model, (3, 3, 8, 8))
    with pytest.raises((AssertionError, RuntimeError)):
        rewritten(model, (3, 3, 8, 8), passes=[*CANONICAL, GraphPass("break", break_it)])


REWRITES: dict[str, dict[str, int]] = {  # network: pass: rewrites
    "conv_bn_relu": {"canonicalize": 2, "fold_batch_norm": 1},
    "residual": {"canonicalize": 8, "fold_batch_norm": 3},
    "concat": {"canonicalize": 4},
    "separable": {"canonicalize": 7, "fold_batch_norm": 2},
    "transposed": {"canonicalize": 3, "fold_batch_norm": 1},
    "padded": {"remove_identity": 1, "canonicalize": 5, "fold_batch_norm": 1, "fold_pad": 1},
    "signal": {"canonicalize": 3, "fold_batch_norm": 1},
    "volume": {"canonicalize": 3, "fold_batch_norm": 1},
    "linear_bn": {"canonicalize": 1, "fold_batch_norm": 1},
    "mlp_3d": {"flatten_linear": 2},
    "nested_output": {},
    "keywords": {},
    "two_inputs": {"remove_identity": 1, "canonicalize": 1},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    network = NETWORKS[name]
    model, graph = captured_network(name)
    counts = run_passes(graph.module, CANONICAL)
    for size in (None, 5, 1):
        assert_same(model, graph.module, *network.example(size))
    assert {n: c for n, c in counts.items() if c} == REWRITES[name]
    assert not [n for n in G.calls(graph.graph) if op(n) in ("batch_norm", "dropout", "conv2d")]
    assert not any(run_passes(graph.module, CANONICAL).values()), "done once is done"
