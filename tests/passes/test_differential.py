"""The check itself: it has to fail on a wrong graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.passes import CANONICAL, GraphPass
from tests.models.small import NETWORKS
from tests.named_cases import named_cases
from tests.passes.differential import Function, assert_same, rewritten

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
