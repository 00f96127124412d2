"""One outcome out of those of all checks."""

import pytest

from qtool.evaluation.gate.result import GateCheck, GateResult, Outcome


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ("accepted", 0),
        ("accepted, inconclusive", 3),
        ("not comparable, accepted, inconclusive", 4),
        ("not comparable, regression, accepted", 1),
    ],
)
def test_the_gravest_check_decides_the_exit_code(outcomes: str, code: int) -> None:
    checks = tuple(GateCheck(each, Outcome(each), "why") for each in outcomes.split(", "))
    result = GateResult("int8.onnx", "float.onnx", checks)
    assert result.exit_code == code
    assert result.reason() == f"{result.outcome}: why"
