"""Dynamic dimensions of ONNX files: what cannot be traced is fixed alone, and said."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.core.argument_names import options_in_messages
from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.frontends.onnx import onnx_file
from qtool.frontends.onnx.example_sizes import fewer_dimensions
from qtool.frontends.onnx.onnx_file import capture_onnx
from qtool.frontends.torch.example_inputs import AddedSizes
from tests.frontends.onnx.files import behind_conv, images, loaded

WANTED = {"x": {0: "n", 2: "h", 3: "w"}, "y": {0: "n", 1: "h"}}
SQUARE = (torch.zeros(4, 3, 8, 8), torch.zeros(4, 8))


def _names(sets: list[dict[str, dict[int, str]]]) -> list[str]:
    return ["".join(sorted({n for axes in each.values() for n in axes.values()})) for each in sets]


def test_as_few_dimensions_as_possible_are_left_out_and_the_batch_last() -> None:
    sets = list(fewer_dimensions(SQUARE, WANTED))
    assert _names(sets) == ["nw", "hn", "n", "hw", ""]
    assert sets[0] == {"x": {0: "n", 3: "w"}, "y": {0: "n"}}


def test_sizes_of_one_are_left_out_but_a_single_sample_is_doubled() -> None:
    row = (torch.zeros(1, 3, 1, 8), torch.zeros(1, 8))
    first = next(fewer_dimensions(row, WANTED))
    assert first == {"x": {0: "n", 3: "w"}, "y": {0: "n", 1: "h"}}
    state = (torch.zeros(4, 3, 8, 8), torch.zeros(1, 8))
    assert next(fewer_dimensions(state, WANTED))["y"] == {1: "h"}


def test_many_dimensions_make_few_sets() -> None:
    wanted = {"x": {axis: f"d{axis}" for axis in range(8)}}
    assert len(list(fewer_dimensions((torch.zeros([2] * 8),), wanted))) == 7 + 3


def test_a_batch_of_one_that_cannot_stay_dynamic_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was doubled to be traced as dynamic."""
    model = loaded(behind_conv("y0 = Relu (h)", sizes="N,3,H,8"), tmp_path)
    traced = onnx_file._traced

    def fixed(*arguments: Any) -> Any:
        return None if 0 in arguments[2]["x"] else traced(*arguments)

    monkeypatch.setattr(onnx_file, "_traced", fixed)
    monkeypatch.setattr(onnx_file, "_untraced", lambda *_: "")
    graph = onnx_file.capture_onnx(model, Batch((images(1),)))
    assert graph.inputs[0].shape == (1, 3, "H", 8)


def _same_pool(path: Path) -> None:
    """A pool whose pads depend on the size, with ceil_mode, which torch has not."""
    weight = np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node(
            "AveragePool", ["a"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2],
            auto_pad="SAME_UPPER", ceil_mode=1,
        ),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def test_the_batch_stays_dynamic_and_the_fixed_dimensions_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _same_pool(tmp_path / "m.onnx")
    model = qtool.load_model(tmp_path / "m.onnx")
    quantized = qtool.quantize(model, [torch.randn(8, 3, 12, 12)] * 4, accuracy="fast")
    assert quantized.graph.inputs[0].shape == ("n", 3, 12, 12)
    sentences = [
        f"dimension {axis} ({name}) of input 'x' is fixed to 12: "
        "pool (AveragePool) is not traced with a dynamic size"
        for axis, name in ((2, "h"), (3, "w"))
    ]
    assert set(sentences) <= set(quantized.notes)
    assert {f"warning: {s}" for s in sentences} <= set(caplog.messages)


def test_nothing_is_said_of_a_batch_that_the_file_fixes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _same_pool(tmp_path / "m.onnx")
    proto = onnx.load(tmp_path / "m.onnx")
    for dim, size in zip(
        proto.graph.input[0].type.tensor_type.shape.dim, (2, 3, 8, 8), strict=True
    ):
        dim.dim_value = size
    onnx.save(proto, tmp_path / "m.onnx")
    captured = qtool.capture_model(qtool.load_model(tmp_path / "m.onnx"), torch.randn(2, 3, 8, 8))
    assert captured.graph.size_conditions == ()
    assert not [m for m in caplog.messages if "fixed" in m]


def test_added_dimensions_keep_those_of_the_file(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)
    graph = helper.make_graph(nodes, "g", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    model = qtool.load_model(tmp_path / "m.onnx")
    captured = qtool.capture_model(model, torch.randn(4, 3, 8), AddedSizes({"x": {2: "length"}}))
    assert captured.graph.inputs[0].shape == ("n", 3, "length")


Window = tuple[int, int, str]
"""Kernel, stride, and a pool."""


def _padded_windows(path: Path, pad: str, *each: Window) -> None:
    """Write convolutions and pools of their results, of images of dynamic size, with auto_pad."""
    draw = np.random.default_rng(0)
    nodes, weights = list[onnx.NodeProto](), list[onnx.TensorProto]()
    for i, (kernel, stride, pool) in enumerate(each):
        weight = draw.normal(size=(4, 3, kernel, kernel)).astype(np.float32) / 5
        windows = {"auto_pad": pad, "strides": [stride] * 2, "kernel_shape": [kernel] * 2}
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(helper.make_node("Conv", ["x", f"w{i}"], [f"a{i}"], **windows))
        nodes.append(helper.make_node(pool, [f"a{i}"], [f"y{i}"], **windows))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w_"])
    ys = [helper.make_tensor_value_info(f"y{i}", 1, [None] * 4) for i in range(len(each))]
    graph = helper.make_graph(nodes, "g", [x], ys, weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


WINDOWS = [
    *((k, s, "MaxPool") for k, s in [(3, 2), (4, 3), (5, 1)]),
    (3, 2, "AveragePool"),
]


@pytest.mark.parametrize("pad", ["SAME_UPPER", "SAME_LOWER"])
def test_auto_pad_of_a_dynamic_size(pad: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    _padded_windows(tmp_path / "m.onnx", pad, *WINDOWS)
    model = qtool.load_model(tmp_path / "m.onnx")
    captured = qtool.capture_model(model, torch.randn(2, 3, 24, 25))
    assert captured.graph.inputs[0].shape == ("n", 3, "h", "w_")
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    for height, width in ((24, 25), (26, 27), (31, 40)):
        images = draw.normal(size=(1, 3, height, width)).astype(np.float32)
        expected = session.run(None, {"x": images})
        actual = captured.graph.module(torch.from_numpy(images))
        for window, one, other in zip(WINDOWS, expected, actual, strict=True):
            np.testing.assert_allclose(other.detach(), one, atol=1e-5, err_msg=str(window))


@pytest.mark.parametrize(
    ("pad", "kernel", "stride", "fixed"),
    [("SAME_UPPER", 2, 2, True), ("SAME_LOWER", 3, 2, True), ("SAME_UPPER", 3, 2, False)],
)
def test_pads_that_are_the_same_for_all_sizes_are_not_computed(
    pad: str, kernel: int, stride: int, fixed: bool, tmp_path: Path
) -> None:
    _padded_windows(tmp_path / "m.onnx", pad, (kernel, stride, "MaxPool"))
    model = qtool.load_model(tmp_path / "m.onnx")
    quantized = qtool.quantize(model, [torch.randn(8, 3, 24, 25)] * 4, accuracy="fast")
    quantized.export(tmp_path / "q.onnx")
    kinds = {n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node}
    assert kinds.isdisjoint({"Shape", "Pad", "Slice"}) == fixed


def test_a_squeeze_without_axes_says_where_it_removes_a_dynamic_size(tmp_path: Path) -> None:
    """ONNX removes the batch where it is 1; a traced result has one rank."""
    text = "z = GlobalAveragePool (h) y0 = Squeeze (z)"
    graph = capture_onnx(loaded(behind_conv(text), tmp_path), Batch((images(4),)))
    note = "(dimension 0 (N) of input 'x'): "
    assert any(note in s and s.endswith("give it its axes") for s in graph.size_conditions)
    text = "z = GlobalAveragePool (h) a = Constant <value_ints = [2, 3]> () y0 = Squeeze (z, a)"
    graph = capture_onnx(loaded(behind_conv(text), tmp_path), Batch((images(4),)))
    assert graph.size_conditions == ()


@pytest.mark.parametrize(
    "end", ["e = Max (m, one)", "e = Min (m, most)", "e1 = Max (one, m) e = Min (e1, most, m)"]
)
def test_a_slice_up_to_a_size_that_max_or_min_computes(end: str, tmp_path: Path) -> None:
    """Frames of a signal are counted so: the number is no value of the data."""
    ints = " ".join(f"{n} = Constant <value_ints = [{v}]> ()" for n, v in SIZES.items())
    text = f"""{ints} s = Shape (h) n = Gather (s, two) m = Sub (n, one) {end}
        f = Add (e, one) a = Slice (h, zero, e, two) b1 = Slice (h, one, f, two)
        y0 = Concat <axis = 1> (a, b1)"""
    model = behind_conv(text, sizes="N,3,H,8")
    graph = capture_onnx(loaded(model, tmp_path), Batch((images(4),)))
    assert graph.inputs[0].shape == ("N", 3, "H", 8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in (2, 5, 30):
        x = torch.randn(2, 3, size, 8)
        (expected,) = session.run(None, {"x": x.numpy()})
        actual = graph.module(x).detach().numpy()
        np.testing.assert_allclose(actual, expected, atol=1e-5)


SIZES = {"zero": 0, "one": 1, "two": 2, "most": 1000}


def test_inputs_that_the_data_lacks_may_be_fixed(tmp_path: Path) -> None:
    model = behind_conv("y0 = Add (h, s)")
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, []))
    with options_in_messages(), pytest.raises(CaptureError) as caught:
        capture_onnx(loaded(model, tmp_path), Batch((images(4),)))
    assert str(caught.value).endswith("x, s; make those constants with --fix s=VALUE")
