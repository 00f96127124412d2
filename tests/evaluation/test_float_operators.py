"""One line says what computes in float, and a change of it that is true."""

import pytest
import torch
from torch import nn

import qtool
from qtool.evaluation.float_operators import _INSTEAD, float_row
from qtool.verification.coverage import planned_coverage

MODULES = {"silu": nn.SiLU, "mish": nn.Mish, "hard_sigmoid": nn.Hardsigmoid}
TARGETS = {"hard_sigmoid": "tflite"}


class Halved(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erf(x / 2)


def _planned_row(
    activation: nn.Module, target: str, recipe: object = None
) -> tuple[str, str] | None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), activation, nn.Conv2d(8, 4, 1)).eval()
    plan = qtool.capture_model(net, torch.randn(2, 3, 8, 8)).plan(target, recipe=recipe)
    return float_row(plan, planned_coverage(plan))


@pytest.mark.parametrize("op", _INSTEAD)
def test_the_change_computes_in_integers(op: str) -> None:
    target, (_, name) = TARGETS.get(op, "onnxruntime"), _INSTEAD[op]
    row = _planned_row(MODULES[op](), target)
    assert row is not None
    change = f"{name} for {op} computes in integers, after some training with it"
    assert row[1] == f"1 {op}; {change}"
    assert _planned_row(getattr(nn, name.removeprefix("nn."))(), target) is None


def test_what_a_recipe_leaves_in_float_is_counted_apart() -> None:
    recipe = [{"select": "0", "as": "float"}]
    row = _planned_row(nn.ReLU(), "onnxruntime", recipe)
    assert row == ("float", "1 relu, 1 operator by the recipe")


def test_operators_have_no_overload() -> None:
    row = _planned_row(Halved(), "onnxruntime")
    assert row is not None
    assert "1 erf" in row[1]
    assert "." not in row[1]


@torch.library.custom_op("audit_words::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@half.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_of_a_library_have_their_own_name() -> None:
    class Library(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.audit_words.half(x)

    row = _planned_row(Library(), "onnxruntime")
    assert row is not None
    assert "1 half" in row[1]
