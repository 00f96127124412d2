"""A note on ranges that few samples decide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import qtool


class Between(nn.Module):
    """Something between two layers."""

    def __init__(self, what: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.what = nn.Linear(8, 8), nn.Linear(8, 4), what

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.what(self.first(x)))


CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "exponential": (lambda x: (3 * x).exp(), True),
    "behind a sum": (lambda x: (4 * x).cosh() + x, True),
    "power": (lambda x: x**7, True),
    "softmax": (lambda x: x.exp() / x.exp().sum(-1, keepdim=True), False),
    "small": (lambda x: (x / 4).exp(), False),
    "square": (lambda x: x**2, False),
    "none": (lambda x: x.relu(), False),
}


@pytest.mark.parametrize(("what", "heavy"), CASES.values(), ids=list(CASES))
def test_what_grows_is_said_where_samples_are_unlike(
    what: Callable[[torch.Tensor], torch.Tensor], heavy: bool
) -> None:
    data = [torch.randn(32, 8, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    found = qtool.quantize(Between(what).eval(), data, recover=()).fidelity
    assert bool(found.heavy_tails) == heavy
    assert ("few samples decide" in str(found)) == heavy


def test_of_few_samples_nothing_is_said() -> None:
    model = Between(lambda x: (3 * x).exp()).eval()
    assert not qtool.quantize(model, [torch.randn(4, 8)]).fidelity.heavy_tails
