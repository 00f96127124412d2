"""Models joined by the names of what goes in and out."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnx.join_models import join_models


def part(given: str, result: str, factor: float) -> onnx.ModelProto:
    """result = given * factor if factor > 0; what is inside has the same names in every part."""
    stored = [numpy_helper.from_array(np.float32(factor), "factor")]
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["factor", "product"][:count], ["chosen"], name="inner")],
            "branch",
            [],
            [helper.make_value_info("chosen", kind)],
        )
        for op, count in (("Max", 2), ("Identity", 1))
    ]
    nodes = [
        helper.make_node("Mul", [given, "factor"], ["product"], name="scale"),
        helper.make_node("Cast", ["factor"], ["positive"], to=TensorProto.BOOL, name="test"),
        helper.make_node(
            "If",
            ["positive"],
            [result],
            then_branch=branches[0],
            else_branch=branches[1],
            name="if",
        ),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in (given, result)]
    graph = helper.make_graph(nodes, "part", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_what_is_inside_of_parts_is_told_apart() -> None:
    whole = join_models([part("x", "h", 2.0), part("h", "y", 3.0)], ["x"], ["y"])
    onnx.checker.check_model(whole)
    assert len({n.name for n in whole.graph.node}) == 6
    assert [t.name for t in whole.graph.initializer] == ["factor", "factor_2"]
    session = ort.InferenceSession(whole.SerializeToString())
    (y,) = session.run(None, {"x": np.array([-1, 5], np.float32)})
    assert y.tolist() == [6.0, 30.0]  # max(2, -2), max(2, 10); three times that, at least 3


def test_a_constant_that_a_part_gives_keeps_its_name() -> None:
    first = part("x", "h", 2.0)
    first.graph.initializer.append(numpy_helper.from_array(np.array([1, 2], np.float32), "given"))
    first.graph.output.append(helper.make_tensor_value_info("given", TensorProto.FLOAT, [2]))
    whole = join_models([first, part("given", "y", 3.0)], ["x"], ["h", "y"])
    onnx.checker.check_model(whole)
    session = ort.InferenceSession(whole.SerializeToString())
    _, y = session.run(None, {"x": np.array([-1, 5], np.float32)})
    assert y.tolist() == [3.0, 6.0]
