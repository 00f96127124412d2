"""Where TensorRT wants Q and DQ, and the file it gets."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qtool.backends.onnxruntime.verification.qdq_structure import Expected, check_structure
from qtool.core.errors import ExportError, VerificationError
from qtool.planning.plan import Execution, Kind
from tests.planning.targets.converted import captured, converted, written


def test_the_layer_behind_an_add_gives_float_and_the_skip_codes() -> None:
    plan = captured("residual_concat").plan("tensorrt")
    rows = {node: (form, output != "float") for node, _, form, output, _ in plan.rows()}
    assert rows["second"] == ("integer", False)  # fused with the add and the relu behind
    assert rows["relu"] == ("fused", True)  # read by the layer and, around it, by the add
    assert rows["add"] == ("integer", False)
    readers = {e.user for e in plan.point("relu").edges}
    assert readers == {"second", "add"}


def test_inputs_of_layers_are_quantized_and_their_outputs_are_not() -> None:
    plan = captured("depthwise").plan("tensorrt")
    assert all(plan.decision(n).output is None for n in ("expand", "depthwise", "project"))
    assert {"x", "relu6", "relu6_2"} <= {p.name for p in plan}
    assert {p.name for p in plan if p.kind is Kind.ACTIVATION} == {"x", "relu6", "relu6_2"}


def test_the_file_has_zero_points_of_zero_and_float_biases() -> None:
    file = written("residual_concat", "tensorrt")
    arrays = {i.name: numpy_helper.to_array(i) for i in file.graph.initializer}
    makers = {o: n for n in file.graph.node for o in n.output}
    pairs = [n for n in file.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert pairs
    assert not any(arrays[n.input[2]].any() for n in pairs)
    assert all(arrays[n.input[2]].dtype == np.int8 for n in pairs)
    layers = [n for n in file.graph.node if n.op_type in ("Conv", "Gemm")]
    assert len(layers) == 4
    assert all(arrays[n.input[2]].dtype == np.float32 for n in layers)
    assert all(makers[n.input[0]].op_type == "DequantizeLinear" for n in layers)


@pytest.mark.parametrize(
    ("part", "changed", "reason"),
    [
        ("zero_point", np.array(3, np.int8), "its zero point must be 0"),
        ("bias", None, "its bias is not a float constant"),
    ],
)
def test_structure_knows_what_the_target_wants(
    part: str, changed: np.ndarray | None, reason: str
) -> None:
    made_for = "tensorrt" if changed is not None else "onnxruntime"
    file = onnx.ModelProto()
    file.CopyFrom(written("depthwise", made_for))
    if changed is not None:
        (zero,) = (i for i in file.graph.initializer if i.name == "relu6.zero_point")
        zero.CopyFrom(numpy_helper.from_array(changed, zero.name))
    integer = {
        d.node
        for d in converted("depthwise", made_for).plan.nodes
        if d.execution is Execution.INTEGER
    }
    wanted = Expected(integer_bias=False, symmetric=frozenset({"int8"} if changed else ()))
    with pytest.raises(VerificationError, match=reason):
        check_structure(file, integer, wanted)


def test_qoperator_is_refused() -> None:
    with pytest.raises(
        ExportError, match="target tensorrt does not support format 'qoperator'; it supports"
    ):
        converted("depthwise", "tensorrt").to_onnx("qoperator")
