"""Stored factors and summands behind a layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.passes.differential import Function, rewritten

IMAGE, ROWS = (2, 4, 6, 6), (2, 3, 5)
CONV, TRANSPOSED = nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose2d(4, 6, 2, groups=2)
LINEAR, PLAIN = nn.Linear(5, 7), nn.Linear(5, 7, bias=False)


class Held(nn.Module):
    """A layer, and stored vectors a and b."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = layer
        self.a, self.b = (nn.Parameter(torch.randn(shape)) for _ in range(2))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, m: m.layer(x) * m.a, id="factor"),
        pytest.param(lambda x, m: m.a * m.layer(x), id="factor first"),
        pytest.param(lambda x, m: m.layer(x) + m.a, id="summand"),
        pytest.param(lambda x, m: m.layer(x) - m.a, id="subtracted"),
        pytest.param(lambda x, m: m.b + m.layer(x) * m.a, id="both"),
    ],
)
@pytest.mark.parametrize(
    ("layer", "shape", "vector"),
    [
        pytest.param(LINEAR, ROWS, (7,), id="linear"),
        pytest.param(PLAIN, ROWS, (1, 1, 7), id="linear without a bias"),
        pytest.param(LINEAR, ROWS, (), id="one number"),
        pytest.param(CONV, IMAGE, (6, 1, 1), id="convolution"),
        pytest.param(TRANSPOSED, IMAGE, (1, 6, 1, 1), id="transposed convolution"),
    ],
)
def test_it_is_part_of_the_layer(
    function: Callable[..., torch.Tensor],
    layer: nn.Module,
    shape: tuple[int, ...],
    vector: tuple[int, ...],
) -> None:
    found = rewritten(Function(function, Held(layer, vector)), shape)
    assert found.counts["fold_affine"] > 0
    assert not {"mul", "add", "sub"} & set(found.ops())


@pytest.mark.parametrize(
    ("layer", "shape", "vector"),
    [
        pytest.param(LINEAR, ROWS, (3, 1), id="along another axis"),
        pytest.param(nn.Linear(5, 1), ROWS, (7,), id="it widens the result"),
        pytest.param(nn.Linear(5, 1), ROWS, (1, 1, 1, 1), id="of more dimensions"),
        pytest.param(nn.Conv2d(4, 4, 3), IMAGE, (4,), id="of columns"),
    ],
)
def test_vectors_that_do_not_fit(
    layer: nn.Module, shape: tuple[int, ...], vector: tuple[int, ...]
) -> None:
    model = Function(lambda x, m: m.layer(x) * m.a, Held(layer, vector))
    assert rewritten(model, shape).counts["fold_affine"] == 0


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, m: m.a - m.layer(x), id="the layer subtracted"),
        pytest.param(lambda x, m: m.layer(x) * x, id="another tensor"),
        pytest.param(lambda x, m: torch.stack([y := m.layer(x), y + m.a]), id="read elsewhere"),
    ],
)
def test_left_alone(function: Callable[..., torch.Tensor]) -> None:
    model = Function(function, Held(nn.Linear(5, 5), (5,)))
    assert rewritten(model, ROWS).counts["fold_affine"] == 0


def test_a_layer_used_twice_keeps_its_other_use() -> None:
    model = Function(lambda x, m: m.layer(x) * m.a + m.layer(x + 1), Held(nn.Linear(5, 5), (5,)))
    assert rewritten(model, ROWS).counts["fold_affine"] == 1
