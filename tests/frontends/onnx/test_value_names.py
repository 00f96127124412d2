"""Names of a file's inputs may be any; torch.export knows small letters alone."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

import qtool
from qtool.frontends.onnx import load_onnx
from qtool.frontends.onnx.value_names import identifiers

NAMES = [["X"], ["X", "x"], ["Input.A", "input_a"], ["层", "A"], ["class", "Class"], ["0", "_"]]


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_identifiers_are_small_and_differ(names: list[str]) -> None:
    found = identifiers(names)
    assert all(n.isidentifier() and n == n.lower() for n in found)
    assert len(set(found)) == len(names)


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_a_file_keeps_the_names_of_its_inputs(names: list[str], tmp_path: Path) -> None:
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in names]
    result = helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N", 4])
    node = helper.make_node("Sum", names, ["Y"], name="sum")
    graph = helper.make_graph([node], "names", inputs, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    batch = {n: torch.rand(2, 4) for n in names}
    captured = qtool.capture_model(load_onnx(tmp_path / "m.onnx"), batch)
    assert [i.name for i in captured.graph.inputs] == names
    assert captured.graph.outputs == ("Y",)
