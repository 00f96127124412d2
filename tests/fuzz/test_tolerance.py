"""The oracle's tolerances are its own, and small."""

import ast
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from tests.fuzz.oracle import rounded_alike
from tests.fuzz.tolerance import NEAR, distance, float_noise

HERE = Path(__file__).parent
FORBIDDEN = ("qtool.core.graph.float_tolerance", "qtool.core.graph.perturbation")


@pytest.mark.parametrize("name", ["oracle", "checks", "tolerance"])
def test_no_tolerance_comes_from_the_product(name: str) -> None:
    tree = ast.parse((HERE / f"{name}.py").read_text("utf-8"))
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not imported & set(FORBIDDEN)


def test_a_widened_tolerance_of_the_product_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is off by a hundredth stays wrong, whatever the product accepts."""
    monkeypatch.setattr("qtool.core.graph.float_tolerance.TOLERANCE", 1.0)
    monkeypatch.setattr("qtool.core.graph.perturbation.TOLERANCE", 1.0)
    monkeypatch.setattr("qtool.core.graph.perturbation.NOISE_FACTOR", 1e9)
    module = fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()).eval())
    batch = (torch.randn(16, 8, generator=torch.Generator().manual_seed(0)),)
    with torch.no_grad():
        truth = [module(*batch)]
    assert rounded_alike(module, batch, truth, truth)
    assert rounded_alike(module, batch, truth, [truth[0] * (1 + 1e-6)])
    assert not rounded_alike(module, batch, truth, [truth[0] * 1.01])
    assert distance(truth[0], truth[0] * 1.01) > NEAR
    assert float_noise(module, batch, {}) < 1e-4
