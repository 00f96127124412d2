"""Estimates of what each quantized tensor makes of the error, compared with runs."""

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms import error_estimates, sensitive_layers
from qtool.algorithms.error_sources import ErrorSource, errors_alone
from qtool.algorithms.sensitive_layers import _Network
from tests.algorithms.search_cost import measured_sources


class Residual(nn.Module):
    """A tensor that two layers read, and one that only moves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        y = nn.functional.max_pool2d(y + torch.tanh(self.second(y)), 2)
        result: torch.Tensor = self.head(y.mean((2, 3)))
        return result


class Rounded(Residual):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.round(self.first(x))
        result: torch.Tensor = self.head(self.second(y).mean((2, 3)))
        return result


def network_of(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module
) -> tuple[_Network, list[ErrorSource]]:
    found: list[tuple[_Network, list[ErrorSource]]] = []

    def keep(network: _Network, sources: list[ErrorSource]) -> list[ErrorSource]:
        found.append((network, sources))
        return sources

    monkeypatch.setattr(sensitive_layers, "POOR_DB", 200.0)
    monkeypatch.setattr(sensitive_layers, "GOOD_DB", 200.0)
    monkeypatch.setattr(sensitive_layers, "BUDGET", 1.0)
    monkeypatch.setattr(sensitive_layers, "_likely", keep)
    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(8, 3, 12, 12, generator=generator) for _ in range(3)]
    qtool.quantize(model.eval(), data, recover=["sensitive-layers"])
    return found[0]


def test_estimates_are_near_what_runs_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network, sources = network_of(monkeypatch, Residual())
    monkeypatch.setattr(error_estimates, "PROBES", 100)
    arguments = network.run, network.compared, network.batches, sources
    exact, estimated = errors_alone(*arguments), error_estimates.estimated_errors(*arguments)
    assert estimated is not None
    assert len(sources) > 5
    for source, a, b in zip(sources, exact, estimated, strict=True):
        assert b == pytest.approx(a, rel=0.4, abs=1e-8), source.points


def test_nothing_is_known_of_tensors_in_front_of_a_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    network, sources = network_of(monkeypatch, Rounded())
    arguments = network.run, network.compared, network.batches, sources
    estimated = error_estimates.estimated_errors(*arguments)
    assert estimated is not None
    unknown = {
        n for s, e in zip(sources, estimated, strict=True) if e == torch.inf for n in s.nodes
    }
    known = {n for s, e in zip(sources, estimated, strict=True) if e < torch.inf for n in s.nodes}
    assert "first" in unknown
    assert "head" in known - unknown


def test_fewer_tensors_are_measured_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(16, 16, 3, padding=1) for _ in range(12)]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight)
    body = [part for layer in layers for part in (layer, nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 16, 3), *body, nn.Conv2d(16, 4, 1)).eval()
    data = [torch.randn(8, 3, 12, 12) for _ in range(3)]
    settings = {"POOR_DB": 200.0, "GOOD_DB": 200.0, "BUDGET": 1.0, "TRIED": 2}
    few, worst = measured_sources(monkeypatch, model, data, LIKELY=8, **settings)
    many, same = measured_sources(monkeypatch, model, data, LIKELY=1000, **settings)
    assert worst == same != []
    assert 2 * few < many
