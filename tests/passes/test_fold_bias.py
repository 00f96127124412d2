"""A stored vector added to a layer without a bias."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.passes.differential import Function, rewritten

IMAGE, ROWS = (2, 4, 6, 6), (2, 3, 5)


@pytest.mark.parametrize(
    ("layer", "shape", "vector", "folded"),
    [
        pytest.param(nn.Linear(5, 7, bias=False), ROWS, (7,), True, id="linear"),
        pytest.param(nn.Linear(5, 7, bias=False), ROWS, (1, 1, 7), True, id="of the same rank"),
        pytest.param(nn.Conv2d(4, 6, 3, bias=False), IMAGE, (6, 1, 1), True, id="convolution"),
        pytest.param(
            nn.ConvTranspose2d(4, 6, 2, bias=False), IMAGE, (1, 6, 1, 1), True, id="transposed"
        ),
        pytest.param(nn.Linear(5, 7), ROWS, (7,), False, id="it has one"),
        pytest.param(nn.Linear(5, 7, bias=False), ROWS, (3, 1), False, id="along another axis"),
        pytest.param(nn.Linear(5, 1, bias=False), ROWS, (7,), False, id="it widens the result"),
        pytest.param(nn.Conv2d(4, 4, 3, bias=False), IMAGE, (4,), False, id="of columns"),
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_bias(
    layer: nn.Module, shape: tuple[int, ...], vector: tuple[int, ...], folded: bool, first: bool
) -> None:
    held = nn.ParameterList([nn.Parameter(torch.randn(vector))])

    def function(x: torch.Tensor, layer: nn.Module, held: nn.ParameterList) -> torch.Tensor:
        return held[0] + layer(x) if first else layer(x) + held[0]

    assert rewritten(Function(function, layer, held), shape).counts["fold_bias"] == folded


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, m, b: m(x) - b[0], id="subtracted"),
        pytest.param(lambda x, m, b: m(x) + x, id="another tensor"),
        pytest.param(lambda x, m, b: torch.stack([y := m(x), y + b[0]]), id="read elsewhere"),
    ],
)
def test_left_alone(function: Callable[..., torch.Tensor]) -> None:
    held = nn.ParameterList([nn.Parameter(torch.randn(5))])
    model = Function(function, nn.Linear(5, 5, bias=False), held)
    assert rewritten(model, ROWS).counts["fold_bias"] == 0
