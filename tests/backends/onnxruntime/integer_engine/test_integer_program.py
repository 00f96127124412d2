"""The integer program, and nodes that the runtime runs."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.integer_engine import runtime_node as module
from qtool.backends.onnxruntime.integer_engine.runtime_node import runtime_graph
from qtool.core.errors import DataError, KernelError
from tests.backends.onnx.export.networks import model, quantized, samples
from tests.backends.onnxruntime.integer_engine.labels import labelled_values


def test_the_quantized_model_gives_its_program() -> None:
    (x,) = samples("residual", 3)
    assert torch.equal(quantized("residual").integer()(x)[0], lower(model("residual"))(x)[0])


def test_tensors_are_found_by_the_names_of_the_model() -> None:
    (x,) = samples("concat", 2)
    found = labelled_values(lower(model("concat")), x)
    assert {"x", "cat"} <= set(found)
    assert found["cat"].dtype == torch.uint8
    assert found["cat"].shape == (2, 10, 8, 8)


def test_inputs_may_be_given_in_codes() -> None:
    program = lower(model("concat"))
    (x,) = samples("concat", 2)
    (step,) = (s for s in program.instructions if s.kind == "quantize")
    codes = program.params[step.output].quantize(x)
    assert codes.dtype == torch.uint8
    assert torch.equal(program(codes)[0], program(x)[0])


def test_quantized_outputs_are_codes_and_others_float() -> None:
    assert lower(model("concat"))(*samples("concat", 2))[0].dtype == torch.uint8
    assert lower(model("linear"))(*samples("linear", 2))[0].dtype == torch.float32


def test_nothing_is_kept_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lower(model("residual"))
    last = program._last_use()
    freed = [name for names in last.values() for name in names]
    assert len(freed) == len(set(freed))
    assert set(program.outputs).isdisjoint(freed)
    assert {s.output for s in program.instructions} - set(freed) == set(program.outputs)


def test_a_wrong_number_of_inputs_is_refused() -> None:
    with pytest.raises(DataError, match="takes 1 inputs, not 0: x"):
        lower(model("concat"))()


W = np.arange(12, dtype=np.float32).reshape(3, 4)


def graph() -> OnnxModel:
    """x [n, 3] -> relu(x W) -> its sum over [1], and a reshape by sizes from outside."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Reshape", ["r", "sizes"], ["y"], name="shape"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("sizes", TensorProto.INT64, [2]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    stored = [numpy_helper.from_array(W, "w")]
    made = helper.make_graph(nodes, "g", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 17)]
    return OnnxModel.of(helper.make_model(made, opset_imports=opsets, ir_version=8))


X = torch.tensor([[1.0, -2.0, 3.0], [-1.0, 0.0, 0.5]])


@pytest.mark.parametrize("small", [0, 1 << 16])
@pytest.mark.parametrize("informed", [False, True])
def test_nodes_run_as_one_graph(
    monkeypatch: pytest.MonkeyPatch, small: int, informed: bool
) -> None:
    monkeypatch.setattr(module, "_SMALL", small)  # 0: constants are shared with the session
    read = graph()
    run, inputs = runtime_graph(read.nodes, read, ["y", "r"], read.value_info if informed else {})
    assert inputs == ("x", "sizes")
    y, r = run(X, torch.tensor([4, 2]))
    expected = torch.relu(X @ torch.from_numpy(W))
    assert torch.equal(r, expected)
    assert torch.equal(y, expected.reshape(4, 2))
    y, _ = run(X[:1], torch.tensor([2, 2]))
    assert torch.equal(y, expected[:1].reshape(2, 2))


@pytest.mark.parametrize(("informed", "count"), [(False, 0), (True, 1)])
def test_a_session_is_made_before_the_run_where_types_are_known(
    monkeypatch: pytest.MonkeyPatch, informed: bool, count: int
) -> None:
    made = []
    session = module.ort.InferenceSession
    monkeypatch.setattr(
        module.ort, "InferenceSession", lambda *a, **k: made.append(a) or session(*a, **k)
    )
    read = graph()
    run, _ = runtime_graph(read.nodes, read, ["y"], read.value_info if informed else {})
    assert len(made) == count
    run(X, torch.tensor([4, 2]))
    run(X, torch.tensor([2, 4]))
    assert len(made) == 1


def test_what_the_runtime_refuses_is_said() -> None:
    read = graph()
    run, _ = runtime_graph(read.nodes, read, ["y"], {})
    with pytest.raises(KernelError, match=r"product \(MatMul\), relu \(Relu\), .* cannot be run"):
        run(X[:, :2], torch.tensor([4, 2]))
