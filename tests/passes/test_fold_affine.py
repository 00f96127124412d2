"""Stored factors and summands behind a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.named_cases import named_cases
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


@named_cases(
    "function",
    ("factor", lambda x, m: m.layer(x) * m.a),
    ("factor first", lambda x, m: m.a * m.layer(x)),
    ("summand", lambda x, m: m.layer(x) + m.a),
    ("subtracted", lambda x, m: m.layer(x) - m.a),
    ("both", lambda x, m: m.b + m.layer(x) * m.a),
)
@named_cases(
    "layer, shape, vector",
    ("linear", LINEAR, ROWS, (7,)),
    ("linear without a bias", PLAIN, ROWS, (1, 1, 7)),
    ("one number", LINEAR, ROWS, ()),
    ("convolution", CONV, IMAGE, (6, 1, 1)),
    ("transposed convolution", TRANSPOSED, IMAGE, (1, 6, 1, 1)),
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


@named_cases(
    "layer, shape, vector",
    ("along another axis", LINEAR, ROWS, (3, 1)),
    ("it widens the result", nn.Linear(5, 1), ROWS, (7,)),
    ("of more dimensions", nn.Linear(5, 1), ROWS, (1, 1, 1, 1)),
    ("of columns", nn.Conv2d(4, 4, 3), IMAGE, (4,)),
)
def test_vectors_that_do_not_fit(
    layer: nn.Module, shape: tuple[int, ...], vector: tuple[int, ...]
) -> None:
    model = Function(lambda x, m: m.layer(x) * m.a, Held(layer, vector))
    assert rewritten(model, shape).counts["fold_affine"] == 0


@named_cases(
    "function",
    ("the layer subtracted", lambda x, m: m.a - m.layer(x)),
    ("another tensor", lambda x, m: m.layer(x) * x),
    ("read elsewhere", lambda x, m: torch.stack([y := m.layer(x), y + m.a])),
)
def test_left_alone(function: Callable[..., torch.Tensor]) -> None:
    model = Function(function, Held(nn.Linear(5, 5), (5,)))
    assert rewritten(model, ROWS).counts["fold_affine"] == 0


def test_a_layer_used_twice_keeps_its_other_use() -> None:
    model = Function(lambda x, m: m.layer(x) * m.a + m.layer(x + 1), Held(nn.Linear(5, 5), (5,)))
    assert rewritten(model, ROWS).counts["fold_affine"] == 1
