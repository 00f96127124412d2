"""What `sensitive-layers` measures, and the tensors that it takes for the worst."""

from typing import Any

import pytest
from torch import Tensor, nn

import qtool
from qtool.algorithms import sensitive_layers


def measured_sources(
    monkeypatch: pytest.MonkeyPatch, network: nn.Module, data: list[Tensor], **settings: Any
) -> tuple[int, Any]:
    """The number of sources that a conversion measured, and the worst, with other constants."""
    measured, worst = [], []
    alone, worst_sources = sensitive_layers.errors_alone, sensitive_layers._worst_sources

    def count(run: Any, compared: Any, batches: Any, sources: Any) -> list[float]:
        measured.append(len(sources))
        return alone(run, compared, batches, sources)

    def keep(*arguments: Any) -> Any:
        worst.append(worst_sources(*arguments))
        return worst[-1]

    with monkeypatch.context() as patch:
        patch.setattr(sensitive_layers, "errors_alone", count)
        patch.setattr(sensitive_layers, "_worst_sources", keep)
        for name, value in settings.items():
            patch.setattr(sensitive_layers, name, value)
        qtool.quantize(network, data, recover=["sensitive-layers"])
    (found,) = worst
    return sum(measured), found
