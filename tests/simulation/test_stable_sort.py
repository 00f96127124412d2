"""Of equal values torch takes any, ONNX the first: a file is not wrong for it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from qtool.api.conversion import quantize
from qtool.simulation.simulation_parity import StableSort
from tests.backends.onnx.export.networks import run

TEXT = """<ir_version: 8, opset_import: ["" : 18]> g (float[5,200] x, int64[1] k)
    => (float[5,K] v, int64[5,K] i) { v, i = TopK <axis = 1, largest = %d> (x, k) }"""


@pytest.mark.parametrize(("largest", "k"), [(True, 7), (False, 7), (True, 200), (False, 200)])
def test_of_equal_values_the_first_as_in_the_runtime(largest: bool, k: int) -> None:
    x = torch.randint(0, 3, (5, 200), generator=torch.Generator().manual_seed(0)).float()
    values, at = run(onnx.parser.parse_model(TEXT % largest), (x, torch.tensor([k])), False)
    with StableSort():
        found = torch.topk(x, k, 1, largest)
        ordered = torch.sort(x, 1, largest)
    for mine, sorted_ in zip(found, ordered, strict=True):
        assert torch.equal(mine, sorted_[:, :k])
    np.testing.assert_array_equal(found.values.numpy(), values)
    np.testing.assert_array_equal(found.indices.numpy(), at)


def test_a_number_alone() -> None:
    with StableSort():
        assert torch.topk(torch.tensor(2.0), 1).values == 2


class Peaks(nn.Module):
    """What stands at the places of the largest values."""

    def __init__(self, order: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.order, self.layer, self.other = order, nn.Conv2d(1, 1, 1), nn.Conv2d(1, 3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        at = self.order(self.layer(x[:, :1]).flatten(1))
        there = self.other(x[:, 1:]).flatten(2)
        return at, torch.gather(there, 2, at[:, None].expand(-1, 3, -1))


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(lambda x: torch.topk(x, 9).indices, id="topk"),
        pytest.param(lambda x: torch.sort(x, 1)[1][:, :9], id="sort"),
        pytest.param(lambda x: x.argsort(descending=True)[:, :9], id="argsort"),
    ],
)
def test_files_that_order_codes_are_right(order: Callable[[torch.Tensor], torch.Tensor]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 2, 12, 12, generator=generator)
    x[:, 0] = torch.randint(0, 3, (8, 12, 12), generator=generator).float()
    verified = quantize(Peaks(order).eval(), [x], accuracy="fast").verify()
    assert verified.passed, str(verified)
