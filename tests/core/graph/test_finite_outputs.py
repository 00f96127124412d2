"""A model whose weights hold NaN is refused, with the name of the weight."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qtool
from qtool.core.errors import DataError
from qtool.core.graph.finite_outputs import check_weights


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).eval()


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("0.weight", torch.nan, "NaN"),
        ("0.bias", -torch.inf, "Inf"),
        ("1.running_var", torch.nan, "NaN"),
    ],
)
def test_the_weight_is_named(name: str, value: float, what: str) -> None:
    broken = model()
    broken.state_dict()[name].view(-1)[1] = value
    message = rf"the weights of the model hold {what}: '{name}';"
    with pytest.raises(DataError, match=message):
        check_weights(broken)
    with pytest.raises(DataError, match=message):
        qtool.capture_model(broken, torch.zeros(2, 2, 8, 8))


def test_a_mask_may_be_infinite_and_a_lazy_weight_unknown() -> None:
    masked = model()
    masked.register_buffer("mask", torch.full((3,), -torch.inf))
    check_weights(masked)
    check_weights(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 3, device="meta")))
