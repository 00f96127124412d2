"""All passes in their order, on whole networks; the check itself can fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.passes import CANONICAL, GraphPass, run_passes
from tests.models.small import NETWORKS
from tests.named_cases import named_cases
from tests.passes.differential import Function, assert_same, captured_network, op, rewritten

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
