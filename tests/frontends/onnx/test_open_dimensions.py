"""Open dimensions and names of values in ONNX files."""

from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper

import qtool
from qtool.core.errors import CaptureError
from qtool.frontends.onnx.onnx_file import load_onnx
from qtool.frontends.onnx.open_dimensions import separate_names
from qtool.frontends.onnx.value_names import identifiers
from tests.frontends.onnx.files import behind_conv, images, loaded

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


UNNAMED = (-1, 0, None, "?", "", "p2o.DynamicDimension.1", "unk__12", "None")


@pytest.mark.parametrize("size", UNNAMED)
def test_sizes_below_one_and_made_names_are_unnamed_dimensions(
    size: int | str | None, tmp_path: Path
) -> None:
    model = behind_conv("y0 = Relu (h)")
    for info in (*model.graph.input, *model.graph.output):
        for axis in (0, 2, 3):
            if info.name == "x":
                dim = info.type.tensor_type.shape.dim[axis]
                dim.Clear()
                if size is not None:
                    setattr(dim, "dim_param" if isinstance(size, str) else "dim_value", size)
    captured = qtool.capture_model(loaded(model, tmp_path), images(2))
    assert captured.graph.inputs[0].shape == ("batch", 3, "dim2", "dim3")


def test_a_file_of_paddle_takes_every_size(tmp_path: Path) -> None:
    model = behind_conv("y0 = Conv <kernel_shape = [3, 3]> (h, w2, b)", sizes="-1,3,-1,-1")
    model = loaded(model, tmp_path)
    quantized = qtool.quantize(model, [images(8)] * 4, accuracy="fast")
    quantized.export(tmp_path / "int8.onnx")
    session = ort.InferenceSession(tmp_path / "int8.onnx", providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 3, "dim2", "dim3"]
    assert session.run(None, {"x": torch.zeros(5, 3, 9, 12).numpy()})[0].shape == (5, 4, 7, 10)
    with pytest.raises(CaptureError, match=r"float32\[batch, 3, dim2, dim3\], the batch gives"):
        qtool.capture_model(model, images(2, channels=4))


def test_dimensions_of_different_sizes_have_different_names() -> None:
    dynamic = {"a": {0: "batch", 1: "dim1"}, "b": {0: "batch", 1: "dim1"}, "c": {1: "dim1"}}
    names = separate_names(dynamic, {"a": (2, 5), "b": (2, 7), "c": (2, 5)})
    assert names == {**dynamic, "b": {0: "batch", 1: "b_dim1"}}
