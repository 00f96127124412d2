"""A step that fails leaves the model as it was, and says so; in Python, and whatever it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms.skip_on_failure import skip_on_failure


class Halves(nn.Module):
    """Takes no batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.layer(half) for half in x.chunk(2)])


def test_a_network_that_takes_no_single_sample_goes_through() -> None:
    data = torch.randn(13, 8, generator=torch.Generator().manual_seed(0))
    model = qtool.quantize(Halves().eval(), [data])
    assert not [n for n in model.notes if "failed" in n]
    assert [change.step for change in model.changes] == ["gptq"]


@pytest.mark.parametrize(
    ("error", "said"), [(RuntimeError("it went\nwrong"), "it went"), (IndexError(), "IndexError")]
)
def test_what_it_was_is_said(error: Exception, said: str) -> None:
    @skip_on_failure("gptq")
    def fails(_: object) -> object:
        raise error

    class Work:
        def with_notes(self, note: str) -> str:
            return note

    note = fails(Work())  # type: ignore[arg-type]  # no more is asked of it
    assert note == f"gptq: skipped, since it failed ({said})"  # type: ignore[comparison-overlap]
