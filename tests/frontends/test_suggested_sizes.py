"""Dimensions that the data suggests, and that the model fixes."""

import pytest
import torch
from torch import nn

import qtool
from qtool.core.errors import CaptureError
from qtool.frontends.torch.example_inputs import SuggestedSizes

SIZES = {"x": {0: "batch", 1: "length"}}


class Fixed(nn.Module):
    """Adds a table of 6 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


def test_a_suggested_dimension_is_fixed_with_a_note() -> None:
    model, x = Fixed().eval(), torch.ones(2, 6, 3)
    captured = qtool.capture_model(model, x, SuggestedSizes(SIZES))
    assert captured.graph.inputs[0].shape == ("batch", 6, 3)
    (note,) = captured.notes
    assert "dimension 1 of input 'x' is fixed to 6" in note
    with pytest.raises(CaptureError, match="dimension 1 of input 'x' cannot be dynamic"):
        qtool.capture_model(model, x, SIZES)
