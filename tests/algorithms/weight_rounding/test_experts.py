"""Experts are rounded with error feedback on the tokens that reach them, each by itself."""

from __future__ import annotations

import pytest
import torch

import qtool
from qtool.algorithms.layer_rows import input_rows
from qtool.algorithms.weight_rounding.experts import MIN_TOKENS, rare_experts, without_rare_experts
from qtool.core.summary import group_notes
from tests.passes.test_experts import layers, mixture, texts


def test_rows_are_those_of_each_expert() -> None:
    captured = qtool.capture_model(mixture("Mixtral"), texts(1)[0])
    graph = captured.for_target("onnxruntime")[0].graph
    x, ids = torch.arange(1.0, 6)[:, None], torch.tensor([2, 0, 2, -1, 3])
    rows = input_rows(layers(graph)[0], x, 100, ids)
    assert rows[..., 0].tolist() == [[2, 0], [0, 0], [1, 3], [5, 0]]


def test_rare_experts_are_named() -> None:
    x, y = torch.ones(3, MIN_TOKENS, 8), torch.ones(3, MIN_TOKENS, 2)
    x[1, 5:] = y[1, 5:] = 0
    (own, target), note = without_rare_experts("mlp.down", (x, y))
    assert [bool(t.any()) for t in own] == [True, False, True]
    assert torch.equal(target[0], y[0])
    assert not target[1].any()
    assert note.startswith("mlp.down.weight[1]: rounded to nearest")
    other = rare_experts("mlp.up", torch.tensor([MIN_TOKENS, 5, 0]))
    (joined,) = group_notes([note, other])  # each layer keeps its own experts
    assert joined.startswith("mlp.down.weight[1], mlp.up.weight[1,2]: rounded")
    assert without_rare_experts("mlp.down", (x[::2], y[::2]))[1] == ""


@pytest.mark.matrix
def test_experts_are_rounded_better_than_to_nearest() -> None:
    data, captured = texts(48), qtool.capture_model(mixture("Mixtral"), texts(1)[0])
    nearest, solved = (
        qtool.quantize(captured, data, mode="weight-only-int4", recover=steps)
        for steps in ([], ["gptq"])
    )
    held_out = texts(64)[48:]

    def error(model: qtool.QuantizedModel) -> float:
        with torch.no_grad():
            pairs = [(model(**b)["logits"], captured.graph.module(**b)["logits"]) for b in held_out]
        return sum(float((a - b).square().sum()) for a, b in pairs)

    assert error(solved) < 0.8 * error(nearest)


@pytest.mark.matrix
def test_a_rare_expert_is_named_in_the_notes() -> None:
    model = mixture("Mixtral", num_experts_per_tok=1)
    with torch.no_grad():
        model.model.layers[0].mlp.gate.weight[3] = 0  # chosen if it is the only one not below 0
    quantized = qtool.quantize(model, texts(16), mode="weight-only-int4", recover=["gptq"])
    notes = [n for n in quantized.notes if "are rounded to nearest" in n]
    assert len(notes) == 2  # of both layers
    assert all(" 3 (" in n for n in notes)
