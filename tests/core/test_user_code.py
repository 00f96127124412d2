"""Models whose own code fails where their attributes are read."""

from typing import Any

import pytest
import torch
from torch import nn

from qtool.core.data import Batch
from qtool.core.data.arguments import Arguments
from qtool.core.user_code import uncompiled
from qtool.frontends.torch.export_errors import run_error


class Strict(nn.Module):
    """Says of an unknown attribute what it wants to say, and no AttributeError."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("it takes none")


class Wrapped(nn.Module):
    @property
    def _orig_mod(self) -> nn.Module:
        raise RuntimeError("not compiled")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("kind", [Strict, Wrapped])
def test_attributes_that_raise_are_none(kind: type[nn.Module]) -> None:
    model = kind()
    assert uncompiled(model) is model
    assert Arguments.of(model).required == {"x"}
    error = run_error(model, Batch((torch.ones(2, 3),)), "ValueError: it takes none")
    assert "does not run on the given inputs" in str(error)
