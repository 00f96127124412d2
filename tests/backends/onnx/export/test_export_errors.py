"""What cannot be written is refused by its name, its line and what to do instead."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qtool.backends.onnx.export import float_onnx
from qtool.backends.onnx.export.onnx_file import describe_export_error
from qtool.core.errors import ExportError
from qtool.frontends.captured_model import capture_model


class Commonest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mode(x, 1).values + 1


class Filtered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x)
        return torch.fft.irfft(torch.sinh(spectrum) * self.weight, n=8)


@pytest.mark.parametrize(
    ("model", "operator", "code", "remedy"),
    [
        (Commonest, r"mode \(aten\.mode\.default", r"return torch\.mode", "register_op"),
        (Filtered, r"sinh \(aten\.sinh\.default", r"return torch\.fft\.irfft", "view_as_real"),
    ],
)
def test_the_operator_its_line_and_a_remedy(
    model: type[nn.Module], operator: str, code: str, remedy: str
) -> None:
    captured = capture_model(model().eval(), torch.randn(4, 8))
    where = rf"{operator} at \S*test_export_errors\.py:\d+: {code}.*\) has no ONNX form; .*{remedy}"
    with pytest.raises(ExportError, match=where) as raised:
        float_onnx(captured.graph)
    assert "\n" not in str(raised.value)


def test_anything_else_is_the_innermost_cause() -> None:
    inner, outer = ValueError("the cause:\n a reason\n more"), RuntimeError("wrapped")
    outer.__cause__ = inner
    assert describe_export_error(torch.fx.Graph(), outer) == "the cause: a reason"
    assert describe_export_error(torch.fx.Graph(), ValueError()) == "ValueError"
