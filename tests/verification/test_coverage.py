"""Shares of the work, and goals for them."""

from __future__ import annotations

import pytest

from qtool.planning.plan import Execution
from qtool.verification.coverage import AuditRow, Coverage, is_audited, unknown_work

LAYER = AuditRow("conv", "Conv", "QLinearConv", True, 900, "")
SMALL = AuditRow("fc", "Gemm", "Gemm", False, 100, "its input is float")
LOOP = AuditRow("loop", "Loop", "Loop", False, 0, "kept", macs_known=False)
CELL = AuditRow("cell", "Cell", "cells", False, 0, "kept", macs_known=False)


def test_unknown_work_is_said() -> None:
    coverage = Coverage("runtime 1", (LAYER, SMALL, LOOP))
    figures = "90 % of 1 k MACs, 1 of 3 operators, and 1 operator whose work is not known"
    assert coverage.row() == ("integer", figures)
    assert ", and 1 operator whose work is not known" in str(coverage)
    assert coverage.to_json()["unknown_operators"] == 1
    assert unknown_work(0) == ""


BELOW = "integer share is 0.9000, below the goal"
ONE = (
    "integer share is 0.9000 of the MACs that are known, but the work of 'loop' in float is not, "
    "so that the goal is not proved"
)
TWO = (
    "integer share is 1.0000 of the MACs that are known, but the work of 'loop' and 1 more "
    "operator in float is not, so that the goal is not proved"
)


@pytest.mark.parametrize(
    ("rows", "least", "sentence"),
    [
        ((LAYER, SMALL), 0.9, ""),
        ((LAYER, SMALL), 0.95, BELOW),
        ((LAYER, SMALL, LOOP), 0.95, BELOW),
        ((LAYER, SMALL, LOOP), 0.5, ONE),
        ((LAYER, LOOP, CELL), 0.5, TWO),
        ((LAYER, LOOP), 0.0, ""),
        ((), 0.0, ""),
        ((), 0.1, "no operator has MACs, so that the goal is not proved"),
    ],
)
def test_goals_are_not_reached_with_unknown_work(
    rows: tuple[AuditRow, ...], least: float, sentence: str
) -> None:
    assert Coverage("runtime 1", rows).missed(least, "the goal") == sentence


@pytest.mark.parametrize(
    ("op", "execution", "works", "listed"),
    [
        ("conv", Execution.INTEGER, True, True),
        ("embedding", Execution.WEIGHTS, False, True),
        ("silu", Execution.FLOAT, False, True),
        ("mish.default", Execution.FLOAT, False, True),
        ("relu", Execution.FUSED, False, False),
        ("max_pool", Execution.PASS, False, True),
        ("pass", Execution.PASS, False, False),
        ("pass", Execution.FLOAT, False, False),
        ("split.Tensor", Execution.FLOAT, False, False),
        ("result", Execution.FLOAT, False, False),
        ("Shape+Gather", Execution.FLOAT, False, False),
        ("Loop", Execution.FLOAT, True, True),
        ("add", Execution.SHAPE, False, False),
    ],
)
def test_operators_that_compute_are_listed(
    op: str, execution: Execution, works: bool, listed: bool
) -> None:
    assert is_audited(op, execution, works) is listed
