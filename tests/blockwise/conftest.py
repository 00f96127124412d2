"""A model folder in small blocks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from qtool.algorithms.registry import STEPS
from qtool.blockwise import quantize
from tests.blockwise.test_by_blocks import Residual


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The weights of `Residual`; afterwards the registered steps are as before."""
    monkeypatch.setattr(quantize, "SPLIT", 1)
    before = list(STEPS)
    torch.manual_seed(0)
    place = tmp_path / "model"
    place.mkdir()
    save_file(Residual().state_dict(), place / "model.safetensors")
    yield place
    STEPS[:] = before
