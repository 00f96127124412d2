"""Coverage, exactness, and checks of the verification itself."""

from dataclasses import replace

import numpy as np
import pytest

from qtool.core.errors import DataError
from qtool.planning.plan import Execution
from qtool.verification import FileCheck
from qtool.verification.coverage import AuditRow, Coverage, is_audited, unknown_work
from qtool.verification.exactness import CodeCounts
from qtool.verification.self_check import SelfCheck


def test_identical_values_are_counted_over_batches() -> None:
    counts = CodeCounts()
    codes = np.array([[1, 2, 3]], np.int8)
    assert counts.add_output(codes, codes, 0.0)
    assert not counts.add_output(codes, codes + np.int8(1), 1.0)
    counts.add_samples([codes])
    counts.add_samples([np.zeros((2, 3))])
    assert counts.figures() == (3, 6, 3, 1.0)


def test_nan_equals_nan() -> None:
    counts = CodeCounts()
    values = np.array([np.nan, 1.0], np.float32)
    assert counts.add_output(values, values, 0.0)
    assert not counts.add_output(values, np.array([0.0, 1.0], np.float32), np.inf)
    assert (counts.elements, counts.identical, counts.worst) == (4, 3, np.inf)


@pytest.mark.parametrize("shape", [(2, 1), (3,), (0,)])
def test_nothing_is_equal_in_another_shape(shape: tuple[int, ...]) -> None:
    counts = CodeCounts()
    assert not counts.add_output(np.zeros(2), np.zeros(shape), np.inf)
    assert (counts.elements, counts.identical) == (2, 0)


def test_no_data_is_no_success() -> None:
    with pytest.raises(DataError, match="nothing was compared"):
        CodeCounts().figures()


CLOSE = FileCheck(1, 1000, 999, 8.77e-06, "layer", 3)
CASES = {
    "identical": (FileCheck(1, 1000, 1000, 0.0, None, 0), "verified"),
    "float nodes round": (
        CLOSE,
        (
            "verified: integer kernels bit for bit; float nodes differ in the last bits, by "
            "8.8e-06 codes"
        ),
    ),
    "a wrong kernel": (FileCheck(1, 10, 9, 1.0, "layer", 3, ("layer",)), "not verified"),
    "no float node": (FileCheck(1, 10, 9, 1.0, "layer", 0), "not verified"),
    "modified": (
        FileCheck(1, 10, 10, 0.0, None, 0, self_test=SelfCheck(True, unmodified=False)),
        "not verified",
    ),
    "another CPU": (
        FileCheck(1, 10, 10, 0.0, None, 0, other_target="onnxruntime-arm"),
        "verified on this CPU alone, which onnxruntime-arm is not for",
    ),
    "no program": (
        FileCheck(0, 0, 0, 0.0, None, 0, not_compared="no kernel"),
        "verified: by its self-test; the engine was not compared",
    ),
}


@pytest.mark.parametrize(("check", "headline"), CASES.values(), ids=CASES)
def test_the_headline_is_that_of_passed(check: FileCheck, headline: str) -> None:
    summary = check.summary("model.onnx")
    assert summary.text == headline
    assert check.passed is headline.startswith("verified")


def test_a_file_of_another_tool_is_not_judged_by_its_accuracy() -> None:
    said = "not compared with the float model: `qtool evaluate` does"
    other, own = FileCheck(1, 10, 10, 0.0, None, 0), SelfCheck(present=True, unmodified=True)
    assert ("accuracy", said) in other.summary("m.onnx").rows
    assert ("accuracy", said) not in replace(other, self_test=own).summary("m.onnx").rows


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
