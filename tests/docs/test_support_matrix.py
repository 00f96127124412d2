"""The table of operators and targets says what plans do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from docs.support_matrix import LEGEND, operator_table, treatment
from qtool import capture_model
from qtool.core.ops import OPS
from qtool.planning.targets import TARGETS
from tests.passes.differential import Function

FORMS = {"integer": "integer", "opportunistic": "integer", "moves": "pass", "weights": "weights"}
FORMS |= {"fused": "fused", "between": "float", "float": "float"}


def _rows() -> dict[str, list[str]]:
    lines = operator_table(TARGETS.values()).splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    assert {len(c) for c in cells} == {2 + len(TARGETS)}
    assert cells[0][2:] == list(TARGETS)
    return {c[0].strip("`"): c[1:] for c in cells[2:]}


def test_there_is_one_row_for_each_operator() -> None:
    assert [*_rows()] == [*dict.fromkeys(op.key for op in OPS.values())]


def test_the_words_are_explained() -> None:
    assert {word for cells in _rows().values() for word in cells[1:]} <= LEGEND.keys()
    assert FORMS.keys() == LEGEND.keys()


def test_operators_are_called_as_in_torch() -> None:
    rows = _rows()
    assert rows["conv"][0] == "qtool::conv"
    assert rows["matmul"][0] == "aten::baddbmm, aten::bmm, aten::matmul, aten::mm"


def _body(
    x: torch.Tensor, first: nn.Module, conv: nn.Module, up: nn.Module, head: nn.Module
) -> torch.Tensor:
    y = F.relu(conv(F.max_pool2d(first(x), 2)))
    return head(up(y + y))


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_a_plan_does_what_the_table_says(target) -> None:
    """At best: a call may have to stay in float for a reason of its own."""
    convs = nn.Conv2d(48, 48, 1), nn.Conv2d(48, 4, 1)
    layers = (*convs, nn.ConvTranspose2d(4, 4, 2, 2), nn.Linear(8, 3))
    captured = capture_model(Function(_body, *layers).eval(), torch.randn(2, 48, 8, 8))
    mode = "weight-only" if target.weights_alone else "static"
    plan = captured.plan(target.name, recipe={"mode": mode})
    by_key = {op.key: op for op in OPS.values()}
    found = {
        d.op: d.execution.value
        for d in plan.nodes
        if d.op in ("conv", "max_pool", "conv_transpose", "linear")
    }
    assert found == {key: FORMS[treatment(by_key[key], target)] for key in found}
    assert len(found) == 4
