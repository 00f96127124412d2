"""Every operator through the public API: captured, quantized, written, run, and accounted for.

Exporting verifies each file against ONNX Runtime; here each arm is looked at alone.
"""

import numpy as np
import pytest

from qtool.planning.plan import Execution
from tests.operators.arms import Arm, arm_of
from tests.operators.case import Case
from tests.operators.table import CASES

COMPUTED = {  # by onnxscript's translations
    *("attention_causal", "group_norm", "mask", "unfold", "variance")
}
MOVES = ("pass", "result")  # of floats: what is around them has the reason


@pytest.mark.parametrize("name", CASES, scope="module")  # the arms of a file in a row
def test_an_operator(name: str) -> None:
    arm, case = arm_of(name), CASES[name]
    assert arm.kernels == case.kernels
    np.testing.assert_array_equal(arm.engine, arm.runtime)
    assert bool(arm.nodes["Shape"]) == (name in COMPUTED)
    check_reasons(arm, case)
    if not case.floats:  # the input is quantized, the output dequantized, and nothing in between
        assert arm.executed["QuantizeLinear"] <= 1
        assert arm.executed["DequantizeLinear"] <= 1
    # 8 bits of a handful of operators: a wrong axis, order or scale is far outside
    assert arm.real.shape == arm.runtime.shape
    assert np.abs(arm.real - arm.runtime).max() < 0.06 * np.ptp(arm.real)


def check_reasons(arm: Arm, case: Case) -> None:
    """Check that what stays in float says why."""
    floats = {
        d.op: d.reason
        for d in arm.decisions
        if d.execution in (Execution.FLOAT, Execution.WEIGHTS) and d.op not in MOVES
    }
    assert set(floats) == set(case.floats)
    for op, words in case.floats.items():
        assert words in floats[op]
