"""Files of converted networks, read back."""

from pathlib import Path

import torch

import qtool
from qtool.evaluation.restored_model import restore


def check_restored(
    model: qtool.QuantizedModel, captured: qtool.Captured, x: torch.Tensor, path: Path
) -> qtool.QuantizedModel:
    """Check that a file passes its verification and holds all that steps changed; return what it
    restores."""
    result = model.export(path)
    assert result is not None
    assert result.passed
    found = restore(path, captured, model.sample)
    with torch.no_grad():
        assert torch.equal(found(x), model(x))
    return found
