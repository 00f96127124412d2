"""A layer for each step of a sequence becomes a layer over the sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.named_cases import named_cases
from tests.passes.differential import CANONICAL, Function, rewritten

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
