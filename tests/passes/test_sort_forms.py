"""Medians whose number of values is dynamic, and of what is not NaN."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.backends.onnxruntime.session import run, session


class Behind(nn.Module):
    """A function of what a linear layer gives."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(6, 5), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x))


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0.1, torch.nan, x)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "median": lambda x: x - x.median(),
    "median of the samples": lambda x: x - x.median(0, keepdim=True).values,
    "kthvalue of the samples": lambda x: x - x.kthvalue(2, 0).values,
    "nanmedian": lambda x: x - with_gaps(x).nanmedian(),
    "nanmedian along an axis": lambda x: with_gaps(x).nanmedian(1).values.nan_to_num(7.0),
    "nanmedian of the samples": lambda x: x - with_gaps(x).nanmedian(0, keepdim=True).values,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_medians_run_with_other_batches(
    function: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    model = Behind(function).eval()
    drawn = [torch.randn(n, 6, generator=torch.Generator().manual_seed(n)) for n in (16, 9, 4)]
    quantized = qtool.quantize(model, drawn[:1])
    quantized.export(tmp_path / "model.onnx", verify=False)
    for x in drawn:
        (found,) = run(session(tmp_path / "model.onnx"), [x.numpy()])
        planned = quantized(x).detach()
        assert torch.allclose(torch.from_numpy(found), planned, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("what", [torch.remainder, torch.fmod, torch.floor_divide])
def test_a_remainder_by_values_near_zero_is_named(what: Callable[..., torch.Tensor]) -> None:
    model, data = Behind(lambda x: what(x[:, :2], x[:, 2:4])).eval(), torch.randn(16, 6)
    assert qtool.quantize(model, [data]).fidelity.near_zero_divisions
