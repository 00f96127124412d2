"""Transformers for LiteRT are dynamic by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.planning import targets
from qtool.planning.default_mode import default_mode
from tests.needs import needs_litert


class Encoder(nn.Module):
    """A transformer, with as many convolutions in front as are asked for."""

    def __init__(self, convolutions: int = 0, norm: bool = True) -> None:
        super().__init__()
        self.stem = nn.Sequential(*(nn.Conv1d(16, 16, 3, padding=1) for _ in range(convolutions)))
        self.norm = nn.LayerNorm(16) if norm else nn.Identity()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.transpose(1, 2)).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mixed = torch.softmax(q @ k.transpose(1, 2), -1) @ v
        y: torch.Tensor = x + self.out(mixed)
        return y


def tokens(count: int = 16) -> torch.Tensor:
    return torch.randn(count, 6, 16, generator=torch.Generator().manual_seed(0))


def captured(**options: Any) -> qtool.Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Encoder(**options).eval(), tokens())


@pytest.mark.parametrize(
    ("target", "options", "mode"),
    [
        ("tflite", {}, "dynamic"),
        ("tflite", {"convolutions": 4}, "static"),
        ("tflite", {"norm": False}, "static"),
        *((name, {}, "static") for name in ("tflite-micro", "onnxruntime", "qnn")),
    ],
)
def test_transformers_have_the_mode_of_their_target(
    target: str, options: dict[str, Any], mode: str
) -> None:
    model = captured(**options)
    graph, _ = model.for_target(target)
    assert default_mode(graph.graph, targets.target(target)) == mode
    assert model.plan(target).recipe.mode == mode


def test_the_output_says_so_and_a_choice_is_kept(tmp_path: Path) -> None:
    model, said = captured(), "mode dynamic: the default for transformers on tflite"
    default = qtool.quantize(model, [tokens()], target="tflite", accuracy="fast")
    assert default.plan.recipe.mode == "dynamic"
    assert any(note.startswith(said) for note in default.notes)
    for choice in ({"mode": "static"}, {"recipe": {"mode": "static"}}):
        chosen = qtool.quantize(model, [tokens()], target="tflite", accuracy="fast", **choice)
        assert chosen.plan.recipe.mode == "static"
        assert not any(note.startswith("mode ") for note in chosen.notes)


def test_calibrations_of_the_default_convert(tmp_path: Path) -> None:
    file = tmp_path / "m.calib"
    qtool.calibrate(captured(), [tokens()], target="tflite").save(file)
    for options in ({}, {"accuracy": "fast"}):
        assert qtool.convert(captured(), file, **options).plan.recipe.mode == "dynamic"


@needs_litert
def test_a_recipe_that_is_measured_has_the_default() -> None:
    found = qtool.fastest_recipe(captured(), [tokens()], target="tflite", seconds=0.01)
    assert found.recipe.mode == "dynamic"
