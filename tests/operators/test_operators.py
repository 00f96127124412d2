"""Every operator through the public API: captured, quantized, written, run, and accounted for.

Exporting verifies each file against ONNX Runtime; here each arm is looked at alone.
"""

import numpy as np
import pytest

from qtool.planning.plan import Execution
from tests.operators.arms import arm_of
from tests.operators.table import CASES

every = pytest.mark.parametrize("name", CASES, scope="module")  # all tests of an arm in a row
COMPUTED = {  # by onnxscript's translations
    *("attention_causal", "group_norm", "mask", "unfold", "variance")
}
MOVES = ("pass", "result")  # of floats: what is around them has the reason


@every
def test_it_runs_in_these_kernels(name: str) -> None:
    assert arm_of(name).kernels == CASES[name].kernels


@every
def test_the_integer_engine_computes_what_the_runtime_does(name: str) -> None:
    arm = arm_of(name)
    np.testing.assert_array_equal(arm.engine, arm.runtime)


@every
def test_what_stays_in_float_says_why(name: str) -> None:
    floats = {
        d.op: d.reason
        for d in arm_of(name).decisions
        if d.execution in (Execution.FLOAT, Execution.WEIGHTS) and d.op not in MOVES
    }
    assert set(floats) == set(CASES[name].floats)
    for op, words in CASES[name].floats.items():
        assert words in floats[op]


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if not c.floats], scope="module")
def test_without_floats_there_are_codes_all_the_way(name: str) -> None:
    """The input is quantized, the output dequantized, and nothing in between."""
    found = arm_of(name).executed
    assert found["QuantizeLinear"] <= 1
    assert found["DequantizeLinear"] <= 1


@every
def test_the_result_is_near_the_model(name: str) -> None:
    """8 bits of a handful of operators: a wrong axis, order or scale is far outside."""
    arm = arm_of(name)
    span = np.ptp(arm.real)
    assert arm.real.shape == arm.runtime.shape
    assert np.abs(arm.real - arm.runtime).max() < 0.06 * span


@every
def test_no_shape_is_computed(name: str) -> None:
    assert bool(arm_of(name).nodes["Shape"]) == (name in COMPUTED)
