"""The QOperator file against the QDQ file it is made of: equal in every bit, in ONNX Runtime."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from qtool.backends.onnx.export import is_qoperator, to_qoperator
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.session import run, session
from qtool.core.errors import VerificationError
from tests.planning.targets.converted import converted, samples, written

X = (0.021, 131)
Y = (0.034, 117)
U8, S8 = np.uint8, np.int8


@dataclass(frozen=True)
class Case:
    """One operator between DQ and Q. inputs: shapes of its computed inputs. weight: shape and
    channel axis of a constant one. out: None leaves its result in float."""

    op: str
    inputs: Sequence[tuple[int, ...]]
    becomes: str
    weight: tuple[tuple[int, ...], int] | None = None
    bias: int = 0
    out: tuple[float, int] | None = (0.05, 120)
    clamp: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


IMAGE = (2, 8, 7, 6)
CASES = {
    "conv": Case(
        "Conv", [IMAGE], "QLinearConv", ((4, 8, 3, 3), 0), 4, attributes={"pads": [1] * 4}
    ),
    "conv, relu": Case("Conv", [IMAGE], "QLinearConv", ((4, 8, 1, 1), 0), 4, (0.03, 0), "Relu"),
    "depthwise": Case("Conv", [IMAGE], "QLinearConv", ((8, 1, 3, 3), 0), attributes={"group": 8}),
    "gemm": Case("Gemm", [(5, 8)], "QGemm", ((6, 8), 0), 6, attributes={"transB": 1}),
    "gemm, other way": Case("Gemm", [(5, 8)], "QGemm", ((8, 6), 1), 6),
    "gemm, no bias": Case("Gemm", [(5, 8)], "QGemm", ((6, 8), 0), attributes={"transB": 1}),
    "gemm, float": Case("Gemm", [(5, 8)], "QGemm", ((6, 8), 0), 6, None, "", {"transB": 1}),
    "matmul": Case("MatMul", [(5, 8)], "QLinearMatMul", ((8, 6), 1)),
    "matmul, float": Case("MatMul", [(5, 8)], "MatMulIntegerToFloat", ((8, 6), 1), 0, None),
    "matmul of two": Case("MatMul", [(2, 5, 8), (2, 8, 3)], "QLinearMatMul"),
    "add": Case("Add", [IMAGE, IMAGE], "QLinearAdd"),
    "add, relu": Case("Add", [IMAGE, IMAGE], "QLinearAdd", out=(0.02, 0), clamp="Relu"),
    "mul": Case("Mul", [IMAGE, IMAGE], "QLinearMul"),
    "concat": Case("Concat", [IMAGE, IMAGE], "QLinearConcat", attributes={"axis": 1}),
    "global average": Case("GlobalAveragePool", [IMAGE], "QLinearGlobalAveragePool"),
    "average": Case(
        "AveragePool",
        [IMAGE],
        "QLinearAveragePool",
        attributes={"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 0]},
    ),
    "sigmoid": Case("Sigmoid", [IMAGE], "QLinearSigmoid", out=(1 / 256, 0)),
    "leaky relu": Case("LeakyRelu", [IMAGE], "QLinearLeakyRelu", attributes={"alpha": 0.3}),
    "max pool": Case("MaxPool", [IMAGE], "MaxPool", out=X, attributes={"kernel_shape": [2, 2]}),
    "transpose": Case("Transpose", [IMAGE], "Transpose", out=X, attributes={"perm": [0, 2, 3, 1]}),
}


class Graph:
    """A QDQ model being written."""

    def __init__(self, dtype: Any = U8) -> None:
        self.dtype, self.nodes, self.stored, self.inputs = dtype, [], [], []

    def constant(self, name: str, value: Any) -> str:
        self.stored.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def params(self, name: str, params: tuple[float, int]) -> list[str]:
        scale = self.constant(f"{name}.scale", np.float32(params[0]))
        return [scale, self.constant(f"{name}.zero", self.dtype(params[1]))]

    def node(self, op: str, inputs: list[str], output: str, name: str = "", **more: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=name or output, **more))
        return output

    def input(self, name: str, shape: Sequence[int], params: tuple[float, int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, 1, shape))
        both = self.params(name, params)
        codes = self.node("QuantizeLinear", [name, *both], f"{name}.quantize")
        return self.node("DequantizeLinear", [codes, *both], f"{name}.dq")

    def weight(self, name: str, codes: np.ndarray, scale: np.ndarray, axis: int) -> str:
        parts = [self.constant(f"{name}.codes", codes), self.constant(f"{name}.scale", scale)]
        parts.append(self.constant(f"{name}.zero", np.zeros(scale.shape, codes.dtype)))
        return self.node("DequantizeLinear", parts, f"{name}.dq", axis=axis)

    def model(self, output: str) -> onnx.ModelProto:
        y = [onnx.ValueInfoProto(name=output)]
        y[0].type.tensor_type.elem_type = 1
        graph = helper.make_graph(self.nodes, "g", self.inputs, y, self.stored)
        opset = [helper.make_opsetid("", 18)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=10)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def build(case: Case, dtype: Any = U8) -> onnx.ModelProto:
    rng, graph = np.random.default_rng(0), Graph(dtype)
    names = [graph.input(f"x{i}", s, (X, Y)[i]) for i, s in enumerate(case.inputs)]
    if case.weight is not None:
        shape, axis = case.weight
        scale = rng.uniform(0.005, 0.02, shape[axis]).astype(np.float32)
        names.append(graph.weight("w", rng.integers(-127, 128, shape).astype(S8), scale, axis))
        if case.bias:
            codes = rng.integers(-3000, 3000, case.bias).astype(np.int32)
            names.append(graph.weight("b", codes, np.float32(X[0]) * scale, 0))
    result = graph.node(case.op, names, "middle", "the operator", **case.attributes)
    if case.clamp:
        result = graph.node(case.clamp, [result], "clamped")
    if case.out is not None:
        both = graph.params("y", case.out)
        codes = graph.node("QuantizeLinear", [result, *both], "y.quantize")
        result = graph.node("DequantizeLinear", [codes, *both], "y")
    return graph.model(result)


def arrays(model: onnx.ModelProto) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    sizes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input]
    return [rng.uniform(-3, 3, s).astype(np.float32) for s in sizes]


def outputs(model: onnx.ModelProto, folder: Path, given: list[np.ndarray]) -> list[np.ndarray]:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return run(session(path), given)


def same(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node)


@pytest.mark.parametrize("name", CASES)
def test_each_operator(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    qdq = build(case)
    written_out = to_qoperator(qdq)
    onnx.checker.check_model(written_out, full_check=True)
    borders = {"QuantizeLinear": len(case.inputs), "DequantizeLinear": int(case.out is not None)}
    assert kinds(written_out) == Counter({case.becomes: 1, **borders})
    (node,) = (n for n in written_out.graph.node if n.op_type == case.becomes)
    assert node.name == "the operator"
    given = arrays(qdq)
    found = outputs(written_out, tmp_path, given)
    assert len(np.unique(found[0])) > 5
    assert same(found, outputs(qdq, tmp_path, given))
    program = lower(qdq)
    (codes,) = program(*map(torch.from_numpy, given))
    params = program.params.get(program.outputs[0])
    assert np.array_equal(found[0], codes if params is None else params.dequantize(codes))


def float_bias() -> onnx.ModelProto:
    graph = Graph()
    x = graph.input("x0", IMAGE, X)
    w = graph.weight("w", np.ones((4, 8, 1, 1), S8), np.full(4, 0.01, np.float32), 0)
    result = graph.node("Conv", [x, w, graph.constant("b", np.ones(4, np.float32))], "middle")
    both = graph.params("y", (0.05, 120))
    codes = graph.node("QuantizeLinear", [result, *both], "y.quantize")
    return graph.model(graph.node("DequantizeLinear", [codes, *both], "y"))


@pytest.mark.parametrize(
    ("model", "stays"),
    [
        pytest.param(float_bias(), "Conv", id="float bias"),
        pytest.param(
            build(Case("Conv", [IMAGE], "", ((4, 8, 1, 1), 0), 4, (0.03, 9), "Relu")),
            "Conv",
            id="a clamp that does something",
        ),
        pytest.param(build(Case("Tanh", [IMAGE], "")), "Tanh", id="no integer operator"),
        pytest.param(
            build(Case("Conv", [IMAGE], "", ((4, 8, 1, 1), 0), 4, None)), "Conv", id="float result"
        ),
    ],
)
def test_what_has_no_integer_form_stays(model: onnx.ModelProto, stays: str, tmp_path: Path) -> None:
    found, given = to_qoperator(model), arrays(model)
    assert kinds(found) == kinds(model)
    assert kinds(found)[stays] == 1
    assert same(outputs(found, tmp_path, given), outputs(model, tmp_path, given))


def test_int8_with_two_readers_is_integer_where_the_target_says_so() -> None:
    case = Case("Add", [IMAGE, IMAGE], "QLinearAdd", out=(0.05, 3))
    model = build(case, lambda z: S8(z - 128 if z > 127 else z))
    extra = helper.make_node("Relu", ["x0.dq"], ["more"])
    second = helper.make_node("DequantizeLinear", [*model.graph.node[1].input], ["x0.again"])
    model.graph.node.extend([second, extra])
    model.graph.output.append(helper.make_tensor_value_info("x0.again", 1, IMAGE))
    assert "QLinearAdd" not in kinds(to_qoperator(model))
    assert kinds(to_qoperator(model, int8=True))["QLinearAdd"] == 1


def test_a_missing_zero_point_is_written() -> None:
    model = build(CASES["conv"])
    for node in model.graph.node:
        if node.output[0] == "w.dq":
            del node.input[2:]
    found = to_qoperator(model)
    (node,) = (n for n in found.graph.node if n.op_type == "QLinearConv")
    (zero,) = (i for i in found.graph.initializer if i.name == node.input[5])
    assert numpy_helper.to_array(zero).dtype == S8
    onnx.checker.check_model(found, full_check=True)


@pytest.mark.parametrize("name", ["residual_concat", "activations", "digits"])
def test_whole_networks(name: str, tmp_path: Path) -> None:
    model, path = converted(name, "onnxruntime"), tmp_path / "model.onnx"
    result = model.export(path, format="qoperator")
    assert result.passed
    assert result.exactness.exact or result.exactness.float_steps
    assert result.coverage.share == 1.0
    file, qdq = onnx.load(path), written(name, "onnxruntime")
    assert is_qoperator(file)
    assert not is_qoperator(qdq)
    assert not set(kinds(file)) & {"Conv", "Gemm", "Add", "Concat"}
    given = [samples(name)[:64].numpy()]
    assert same(run(session(path), given), outputs(qdq, tmp_path, given))


def test_verification_sees_wrong_codes(tmp_path: Path) -> None:
    model, path = converted("depthwise", "onnxruntime"), tmp_path / "model.onnx"
    file = model.to_onnx("qoperator")
    (codes,) = (i for i in file.graph.initializer if i.name == "depthwise.weight.codes")
    codes.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(codes), codes.name))
    onnx.save(file, path)
    assert not model.verify(path).passed
    del file.graph.node[-1].input[1:]
    onnx.save(file, path)
    with pytest.raises(VerificationError, match="not well-formed ONNX"):
        model.verify(path)


def test_other_targets() -> None:
    file = converted("residual_concat", "onnxruntime-arm").to_onnx("qoperator")
    assert not set(kinds(file)) & {"Conv", "Gemm", "Add", "Concat"}
    onnx.checker.check_model(file, full_check=True)
