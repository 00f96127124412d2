"""Steps for causal language models are judged by what texts say next."""

from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms import acceptance
from qtool.algorithms.acceptance import best_candidate
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.next_token_loss import conclusive_change, find_next_tokens
from qtool.core.data import Batch


class Model(nn.Module):
    """Logits from a token and the one before, or also from the one behind."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head, self.causal = nn.Embedding(20, 16), nn.Linear(16, 20), causal

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.words(input_ids)
        both = nn.functional.pad(x, (0, 0, 1, 0))[:, :-1] if self.causal else x.roll(-1, 1)
        return {"logits": self.head(torch.relu(x + both))}


IDS = torch.randint(0, 20, (96, 12), generator=torch.Generator().manual_seed(1))


def state(causal: bool = True) -> ConversionState:
    batches = [{"input_ids": ids} for ids in IDS.split(32)]
    captured = qtool.capture_model(Model(causal).eval(), batches[0])
    calibration = qtool.calibrate(captured, batches, recover=["gptq"])
    return ConversionState.start(captured, captured.plan(), calibration).solved()


@pytest.mark.parametrize("causal", [True, False])
def test_a_causal_language_model_is_known_by_its_logits(causal: bool) -> None:
    graph = state(causal).captured.graph
    batch = graph.bind(Batch((), {"input_ids": IDS[:8]}))
    assert (find_next_tokens(graph, batch) is not None) is causal


def test_losses_are_those_of_torch() -> None:
    graph = state().captured.graph
    batch = graph.bind(Batch((), {"input_ids": IDS[:8]}))
    tokens = find_next_tokens(graph, batch)
    assert tokens is not None
    with torch.no_grad():
        logits = Model(True).eval()(IDS[:8])["logits"]
    expected = nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), IDS[:8, 1:], reduction="none"
    ).mean(1)
    assert torch.allclose(tokens.losses(graph, batch, [logits]), expected.double(), atol=1e-6)


def test_a_difference_within_its_error_is_chance() -> None:
    before = torch.linspace(1, 2, 32, dtype=torch.float64)
    noise = torch.randn(32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert conclusive_change(before, before + 0.01 * noise) is None
    assert conclusive_change(before, before - 0.1 + 0.01 * noise) == pytest.approx(-0.1, abs=0.01)
    assert conclusive_change(before[:4], before[:4] - 1) is None


@pytest.mark.parametrize(("change", "taken"), [(-0.1, True), (0.1, False)])
def test_the_loss_decides_against_the_error_of_the_logits(
    change: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = state()

    def losses(*_: Any) -> list[torch.Tensor]:
        before = torch.linspace(1, 2, 32, dtype=torch.float64)
        return [before, before + change]

    def noise(*_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.linspace(1, 2, 32, dtype=torch.float64)
        return before, before * (2 if taken else 0.5)  # the other way round

    monkeypatch.setattr(acceptance, "token_losses", losses)
    monkeypatch.setattr(acceptance, "output_noise", noise)
    assert (best_candidate(start, [start], 64) is start) is taken
