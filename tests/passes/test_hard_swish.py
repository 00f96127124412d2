"""Hard-swish: its spellings, gates in integers, and one operator of the file where it is float."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.passes import CANONICAL, FOR_FILES, FOR_TARGETS
from qtool.planning.recipe import Recipe, Rule
from tests.named_cases import cases
from tests.passes.differential import Function, assert_near, rewritten, written

PASSES = [*CANONICAL, FOR_TARGETS["hard_swish"], FOR_FILES["hard_swish_forms"]]
IMAGE = (2, 4, 6, 6)
Step = Callable[[torch.Tensor], torch.Tensor]


@cases(
    "steps",
    lambda y: y * F.relu6(y + 3) / 6,
    lambda y: F.relu6(3 + y) * y * (1 / 6),
    lambda y: y * (F.relu6(y + 3.0) / 6.0),
    lambda y: y * (y / 6 + 0.5).clamp(0, 1),
    lambda y: y * F.hardtanh(0.5 + y * torch.tensor([1 / 6]), 0.0, 1.0),
    lambda y: y * F.hardsigmoid(y),
)
def test_spellings_of_hard_swish(steps: Step) -> None:
    model = Function(lambda x, layer: steps(layer(x)), nn.Conv2d(4, 4, 1))
    result = rewritten(model, IMAGE, passes=CANONICAL)
    assert result.ops() == ["conv", "hardswish"]


def test_the_spelling_of_hard_sigmoid() -> None:
    model = Function(lambda x, layer: F.relu6(layer(x) + 3) / 6, nn.Conv2d(4, 4, 1))
    assert rewritten(model, IMAGE, passes=CANONICAL).ops() == ["conv", "hardsigmoid"]


@cases(
    "steps",
    lambda y: y * F.relu6(y + 2) / 6,
    lambda y: y * F.relu6(y + 3) / 5,
    lambda y: (2 * y) * F.relu6(y + 3) / 6,
    lambda y: 6 / (1 + F.relu6(y + 3)),
)
def test_what_is_no_hard_swish(steps: Step) -> None:
    model = Function(lambda x, layer: steps(layer(x)), nn.Conv2d(4, 4, 1))
    assert rewritten(model, IMAGE, passes=CANONICAL).counts["hard_swish_forms"] == 0


def test_a_gate_of_another_slope_has_a_form_in_integers() -> None:
    def gate(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        return x * (0.2 * layer(x) + 0.4).clamp(0, 1)

    passes = [*CANONICAL, FOR_TARGETS["hard_swish"]]
    result = rewritten(Function(gate, nn.Conv2d(4, 4, 1)), IMAGE, passes=passes)
    assert result.ops() == ["conv", "rescale", "add", "clamp", "mul"]
    outside = rewritten(Function(lambda x: (0.2 * x + 0.4).clamp(0, 1)), IMAGE, passes=passes)
    assert outside.counts["hard_swish"] == 0


@pytest.mark.parametrize(
    ("activation", "operator"), [(nn.Hardswish(), "hardswish"), (nn.Hardsigmoid(), "hardsigmoid")]
)
def test_the_steps_are_one_operator_again(activation: nn.Module, operator: str) -> None:
    result = rewritten(nn.Sequential(nn.Conv2d(4, 4, 1), activation), IMAGE, passes=PASSES)
    assert result.ops() == ["conv", operator]


def test_a_gate_with_two_readers_stays_a_gate() -> None:
    def twice(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        y = layer(x)
        gate = F.hardsigmoid(y)
        return y * gate + gate

    result = rewritten(Function(twice, nn.Conv2d(4, 4, 1)), IMAGE, passes=PASSES)
    assert result.ops() == ["conv", "hardsigmoid", "mul", "add"]


@cases(
    "steps",
    lambda y: (y / 6 + 0.25).clamp(0, 1),
    lambda y: (y / 6 + 0.5).clamp(0, 2),
    lambda y: (y / 5 + 0.5).clamp(0, 1),
)
def test_other_steps_stay(steps: Step) -> None:
    model = Function(lambda x, layer: steps(layer(x)), nn.Conv2d(4, 4, 1))
    assert rewritten(model, IMAGE, passes=PASSES).counts["hard_swish_forms"] == 0


def test_the_runtime_computes_it_with_the_float_convolution(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.Hardswish(), nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish()
    model = nn.Sequential(*layers, nn.Conv2d(8, 16, 1)).eval()
    recipe = Recipe(rules=(Rule(select="[02]", scheme="float"),))
    batch = torch.randn(8, 3, 12, 12)
    file = written(model, batch, recipe, tmp_path / "a.onnx")
    kinds = [n.op_type for n in onnx.load(file.path).graph.node]
    assert kinds.count("HardSwish") == 2
    assert "Clip" not in kinds
    assert dict(file.summary().rows)["float"] == "2 hard_swish, 2 operators by the recipe"
    names = [row.name for row in file.verification.coverage.rows]
    assert names == ["0", "1", "2", "3", "4"]
    assert_near(file.path, model, batch)
