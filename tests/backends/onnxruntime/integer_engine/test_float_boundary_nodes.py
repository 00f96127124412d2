"""Nodes that compute in integers between floats: which the engine runs, and which the runtime."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnxruntime.integer_engine import float_boundary_nodes, lower, node_forms
from qtool.backends.onnxruntime.integer_engine.integer_program import Program
from qtool.backends.onnxruntime.kernels import nbits
from qtool.backends.profiles import profile
from qtool.core.schemes import KERNEL_BLOCKS
from tests.backends.onnxruntime.kernels.oracle import VNNI

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 40), np.float32)
CODES = RNG.integers(0, 256, (6, 3, 8)).astype(np.uint8)
SCALE = RNG.uniform(0.1, 1, (6, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_forms, "_matches", {})


def model(scale: np.ndarray = SCALE, computed: str = "", **attributes: Any) -> onnx.ModelProto:
    """A product with weights in blocks of 16; `computed`: the input that comes from outside."""
    sizes = {"K": 40, "N": 6, "bits": 4, "block_size": 16, "accuracy_level": 4, **attributes}
    node = helper.make_node(
        "MatMulNBits", ["x", "b", "s"], ["y"], "product", domain="com.microsoft",
        **sizes,
    )  # fmt: skip
    kind = helper.np_dtype_to_tensor_dtype(scale.dtype)
    arrays = {"x": X.astype(scale.dtype), "b": CODES[..., : 2 * sizes["bits"]], "s": scale}
    inputs = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(arrays[n].dtype), arrays[n].shape
        )
        for n in ("x", *computed)
    ]
    stored = [numpy_helper.from_array(arrays[n], n) for n in ("b", "s") if n != computed]
    outputs = [helper.make_tensor_value_info("y", kind, [3, 6])]
    graph = helper.make_graph([node], "g", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def kinds(program: Program) -> list[str]:
    return [step.kind for step in program.instructions]


@VNNI
def test_a_product_in_blocks_runs_in_the_engine() -> None:
    program = lower(model())
    assert kinds(program) == ["integer"]
    assert list(node_forms._matches.values()) == [True]
    again = lower(model())  # found out once
    assert len(node_forms._matches) == 1
    assert torch.equal(*program(torch.from_numpy(X)), *again(torch.from_numpy(X)))


IN_RUNTIME: dict[str, Callable[[], onnx.ModelProto]] = {
    "inputs stay in float": lambda: model(accuracy_level=0),
    "2 bits in blocks without integer kernel": lambda: model(bits=2),
    "computed codes": lambda: model(computed="b"),
    "computed scales": lambda: model(computed="s"),
    "half precision": lambda: model(SCALE.astype(np.float16)),
}


@pytest.mark.parametrize("made", IN_RUNTIME.values(), ids=IN_RUNTIME.keys())
def test_other_forms_run_in_the_runtime(made: Callable[[], onnx.ModelProto]) -> None:
    assert kinds(lower(made())) == ["float"]


def test_other_profiles_have_no_such_kernels() -> None:
    assert kinds(lower(model(), "tflite")) == ["float"]


@VNNI
def test_where_bits_differ_here_the_runtime_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nbits, "_in_turn", nbits.add_halves)  # folded in another order
    assert kinds(lower(model())) == ["float"]
    assert list(node_forms._matches.values()) == [False]


def test_what_the_runtime_does_not_take_is_not_known_to_agree() -> None:
    form = node_forms.NodeForm(
        "NoSuch", (node_forms.RandomInput((2, 2), runtime_input=True),), "com.microsoft"
    )

    def bind(node: Any, file: Any) -> node_forms.BoundKernel:
        return node_forms.BoundKernel(lambda x: x, node.inputs, form)

    assert not node_forms.matches_runtime(form, bind)


@VNNI
def test_each_kernel_agrees_with_the_runtime_on_this_processor() -> None:
    """In all forms that qtool writes. Where this fails, programs are slower and still right."""
    chosen = profile("onnxruntime-x64")
    found = [
        float_boundary_nodes._blocks(b, n, zeros, bias=True)
        for b in KERNEL_BLOCKS
        for n in KERNEL_BLOCKS[b]
        for zeros in (False, True)
    ]
    for form in found:
        assert node_forms.matches_runtime(
            form, lambda n, file: float_boundary_nodes._matmul_nbits(n, file, chosen)
        ), form


def test_a_dynamic_layer_runs_in_integers() -> None:
    weight = RNG.integers(-64, 65, (40, 5)).astype(np.int8)  # no pair of them saturates anywhere
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["c", "s", "z"], "codes"),
        helper.make_node("MatMulInteger", ["c", "w", "z"], ["sums"], "product"),
        helper.make_node("Cast", ["sums"], ["f"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"], "scaled"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 40])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5])
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    opsets = [helper.make_opsetid("", 17)]
    program = lower(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    assert kinds(program) == ["integer", "integer", "float"]
    (found,) = program(torch.from_numpy(X))
    assert float((found - torch.from_numpy(X @ weight)).abs().max()) < 5


def lstm(direction: str = "forward", states: bool = False, **attributes: Any) -> onnx.ModelProto:
    """An LSTM of 4 on 6 inputs, with weights in int8."""
    count = 2 if direction == "bidirectional" else 1
    stored = {
        "w": RNG.integers(-127, 128, (count, 6, 16)).astype(np.int8),
        "r": RNG.integers(-127, 128, (count, 4, 16)).astype(np.int8),
        "s": RNG.uniform(0.001, 0.01, (count, 16)).astype(np.float32),
        "z": np.zeros((count, 16), np.int8),
    }
    given = {"x": (3, 2, 6), **({"h": (count, 2, 4), "c": (count, 2, 4)} if states else {})}
    names = ["x", "w", "r", "", "", *(["h", "c"] if states else ["", ""]), "", "s", "z", "s", "z"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y", "yh", "yc"], "cell", domain="com.microsoft",
        hidden_size=4, direction=direction, **attributes,
    )  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in given.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, count, 2, 4])]
    arrays = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", inputs, outputs, arrays)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@VNNI
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_a_dynamic_lstm_runs_in_the_engine(direction: str, states: bool) -> None:
    program = lower(lstm(direction, states))
    assert kinds(program) == ["integer"]
    assert list(node_forms._matches.values()) == [True]
    count = 2 if direction == "bidirectional" else 1
    more = [torch.ones(count, 2, 4)] * 2 if states else []
    (found,) = program(torch.ones(3, 2, 6), *more)
    assert found.shape == (3, count, 2, 4)


def test_an_lstm_that_clips_runs_in_the_runtime() -> None:
    assert kinds(lower(lstm(clip=0.5))) == ["float"]


@pytest.mark.parametrize("more", [(), ("z",), ("z", "b"), ("", "b")], ids=str)
@pytest.mark.parametrize("size", [(), (5,)], ids=str)
def test_a_product_that_others_joined_runs_in_integers(
    size: tuple[int, ...], more: tuple[str, ...]
) -> None:
    stored = {
        "w": RNG.integers(-127, 128, (40, 5)).astype(np.int8),
        "s": RNG.uniform(0.1, 1, size).astype(np.float32),
        "z": RNG.integers(-9, 9, size).astype(np.int8),
        "b": RNG.standard_normal(5).astype(np.float32),
    }
    names = ["x", "w", "s", *more]
    node = helper.make_node("DynamicQuantizeMatMul", names, ["y"], "p", domain="com.microsoft")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 40])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5])
    arrays = [numpy_helper.from_array(np.asarray(a), n) for n, a in stored.items() if n in names]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [x], [y], arrays)
    file = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    program = lower(file)
    assert kinds(program) == ["integer"]
    (wanted,) = ort.InferenceSession(file.SerializeToString()).run(None, {"x": X})
    assert np.array_equal(program(torch.from_numpy(X))[0].numpy(), wanted)
