"""The rows of ONNX operators, against the schemas of ONNX and of ONNX Runtime."""

from __future__ import annotations

import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from qtool.backends.onnx.operator_rows import MOVES, ON_CODES, ONNX_OPERATORS
from qtool.backends.onnxruntime.integer_engine import moves as engine_moves
from qtool.core.ops import row_named

UNARY = [kind for kind, row in ONNX_OPERATORS.items() if row.unary]
SCHEMAS = {schema.name: schema for schema in runtime.get_all_operator_schema()}
PLAIN = [kind for kind, row in ONNX_OPERATORS.items() if row.plain]


@pytest.mark.parametrize("kind", UNARY)
def test_attributes_are_those_of_onnx_in_the_order_of_torch(kind: str) -> None:
    row, schema = ONNX_OPERATORS[kind], onnx.defs.get_schema(kind)
    assert set(row.attributes) == set(schema.attributes)
    for name, default in row.attributes.items():
        assert schema.attributes[name].default_value.f == pytest.approx(default)
    tensor, *numbers = row_named(row.key).targets[0]._schema.arguments
    assert str(tensor.type) == "Tensor"
    defaults = [a.default_value for a in numbers[: len(row.attributes)]]
    assert defaults == list(row.attributes.values())


@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_operator_takes_codes_and_parameters_in_this_order(kind: str) -> None:
    row = ONNX_OPERATORS[kind]
    schema = SCHEMAS[row.on_codes]
    assert set(row.attributes) == set(schema.attributes)
    tensors = ["X"] if row.codes == 1 else ["A", "B"]
    out = "Y" if row.codes == 1 else "C"
    expected = [f"{t}{part}" for t in tensors for part in ("", "_scale", "_zero_point")]
    assert [i.name for i in schema.inputs] == [*expected, f"{out}_scale", f"{out}_zero_point"]


def test_the_runtime_has_the_operators_on_codes() -> None:
    assert set(ON_CODES) <= set(SCHEMAS)


def test_moves_are_those_that_the_engine_makes() -> None:
    assert set(MOVES) == set(engine_moves.MOVES)
