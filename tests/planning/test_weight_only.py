"""Layers with integer weights and a float result, as decisions."""

from __future__ import annotations

import pytest

from qtool.core.schemes import SCHEMES, Scales, Scheme, When
from qtool.core.types import INT4, INT8_NARROW, UINT4
from qtool.planning.plan import Execution
from qtool.planning.targets import target
from qtool.planning.weight_only import execution_and_reason, storage_scheme

X86 = target("onnxruntime")
ALONE = {
    "static": (SCHEMES["static"], INT8_NARROW),
    "int4-weights": (SCHEMES["int4-weights"], INT8_NARROW),  # in blocks, which are for products
    "4 bits": (Scheme(weights=INT4), INT4),
    "a zero point": (Scheme(weights=UINT4), INT8_NARROW),
}


@pytest.mark.parametrize(("asked", "weights"), ALONE.values(), ids=ALONE.keys())
def test_weights_that_are_always_stored_alone(asked: Scheme, weights: object) -> None:
    found = storage_scheme("lstm", asked, X86)
    assert (found.when, found.scales) == (When.NEVER, Scales.CHANNEL)
    assert found.weights is weights


def test_a_kernel_that_rounds_its_inputs_is_taken_where_that_is_asked_for() -> None:
    asked = SCHEMES["dynamic"]
    assert storage_scheme("lstm", asked, X86).when is When.DYNAMIC
    assert storage_scheme("gru", asked, X86).when is When.NEVER
    assert storage_scheme("lstm", asked, target("openvino")).when is When.NEVER


@pytest.mark.parametrize(
    ("name", "execution", "reason"),
    [
        ("dynamic", Execution.DYNAMIC, "its input is quantized with the range of each batch"),
        ("int8-weights", Execution.WEIGHTS, "int8 weights, input and result in float"),
        (
            "int4-weights",
            Execution.WEIGHTS,
            "4-bit weights in blocks of 32, input and result in float",
        ),
    ],
)
def test_decisions_say_what_is_stored(name: str, execution: Execution, reason: str) -> None:
    found = SCHEMES[name].first_match(X86.schemes("linear"))
    assert found is not None
    assert execution_and_reason(found, X86) == (execution, reason)
