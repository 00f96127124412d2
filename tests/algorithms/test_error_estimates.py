"""Estimates of what each quantized tensor makes of the error, compared with runs."""

from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms import error_estimates, sensitive_layers
from qtool.algorithms.error_sources import ErrorSource, errors_alone
from qtool.algorithms.sensitive_layers import _Network


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
    measured: list[int] = []
    worst: list[Any] = []
    worst_sources = sensitive_layers._worst_sources

    def count(run: Any, compared: Any, batches: Any, sources: Any) -> list[float]:
        measured.append(len(sources))
        return errors_alone(run, compared, batches, sources)

    def keep(network: Any, poor: bool) -> Any:
        worst.append(worst_sources(network, poor))
        return worst[-1]

    monkeypatch.setattr(sensitive_layers, "errors_alone", count)
    monkeypatch.setattr(sensitive_layers, "_worst_sources", keep)
    monkeypatch.setattr(sensitive_layers, "POOR_DB", 200.0)
    monkeypatch.setattr(sensitive_layers, "GOOD_DB", 200.0)
    monkeypatch.setattr(sensitive_layers, "BUDGET", 1.0)
    monkeypatch.setattr(sensitive_layers, "TRIED", 2)
    torch.manual_seed(0)
    layers = [nn.Conv2d(16, 16, 3, padding=1) for _ in range(12)]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight)
    body = [part for layer in layers for part in (layer, nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 16, 3), *body, nn.Conv2d(16, 4, 1)).eval()
    data = [torch.randn(8, 3, 12, 12) for _ in range(3)]
    counts = []
    for likely in (8, 1000):
        monkeypatch.setattr(sensitive_layers, "LIKELY", likely)
        qtool.quantize(model, data, recover=["sensitive-layers"])
        counts.append(sum(measured))
        measured.clear()
    assert worst[0] == worst[1] != []
    assert 2 * counts[0] < counts[1]
