"""The search space where a group cannot be quantized alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qtool
from qtool.api.tuning import _recipes
from qtool.search.choices import FLOAT, observers_of, search_space
from qtool.search.cost_model import extra_points, find_items


class Tied(nn.Module):
    """A table of words that is the head, too; it is small, so that alone it stays in float."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.layer = nn.Linear(32, 32)
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.relu(self.layer(self.table(ids))))
        return result


def test_a_small_table_is_quantized_only_with_its_head() -> None:
    captured = qtool.capture_model(Tied().eval(), torch.arange(8).reshape(2, 4))
    plan = captured.plan(mode="weight-only-int4")
    graph, _ = captured.for_target("onnxruntime")
    space = search_space(graph, plan, observers_of(plan), ("int4-weights", "int8-weights"))
    names = [group.name for group in space.groups]
    assert set(names) == {"table", "layer", "head"}
    in_float = space.config(FLOAT)

    def alone(name: str) -> tuple[int, ...]:
        at = names.index(name)
        return (*in_float[:at], 0, *in_float[at + 1 :])

    assert space.is_float(in_float)
    assert space.is_float(alone("table"))
    assert not space.is_float(alone("layer"))
    assert not space.is_float(space.default_config)
    assert find_items(space).points
    assert extra_points(space) == ()


def test_a_search_of_weights_alone() -> None:
    """No result is rounded, so there are no boundaries between integers and floats."""
    torch.manual_seed(0)
    batches = [torch.randint(0, 64, (4, 4)) for _ in range(10)]
    result = qtool.tune(
        Tied().eval(),
        batches,
        batches[:4],
        goals=qtool.TuneGoals(min_sqnr=10.0, smallest=True),
        options=qtool.SearchOptions(
            choices=("int4-weights", "int8-weights"), evaluations=2, timing=0.01
        ),
        recover=[],
    )
    assert not result.missed or "slower than float" in result.missed[0]  # of a few hundred bytes
    assert result.recipe.mode in ("weight-only", "weight-only-int4")
    assert {g.choice for g in result.groups} <= {"int8-weights", "int4-weights", "float"}


@pytest.mark.parametrize(
    ("recipe", "choices", "mode"),
    [
        (None, ("static", "int4-weights"), "static"),
        (None, ("float", "int4-weights", "int8-weights"), "weight-only"),
        (None, ("static-16",), "static"),
        ({"mode": "dynamic"}, ("int4-weights",), "dynamic"),
    ],
)
def test_the_default_of_a_search_is_one_of_its_choices(
    recipe: dict[str, str] | None, choices: tuple[str, ...], mode: str
) -> None:
    assert {r.mode for r in _recipes(recipe, ("fast", "balanced"), None, choices)} == {mode}
