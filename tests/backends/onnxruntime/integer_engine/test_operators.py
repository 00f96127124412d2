"""Each row of the table alone, in a file that no exporter wrote: equal to ONNX Runtime's kernel."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.integer_engine.operators import (
    OPERATORS,
    SIGNED_OPERATORS,
    Operator,
)
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.types import UINT8, QType

SHAPE = (3, 4, 7, 6)
WEIGHTS = {"Conv": (5, 4, 3, 3), "Gemm": (4, 5), "MatMul": (4, 5)}


def one(op: str, inputs: int = 1, bias: bool = False, **attributes: Any) -> onnx.ModelProto:
    """x (and others of its shape) -> Q -> DQ -> the operator -> Q -> DQ -> y."""
    random = np.random.default_rng(len(op))
    shape = SHAPE if op not in WEIGHTS or op == "Conv" else SHAPE[:2]
    stored: dict[str, np.ndarray[Any, Any]] = {}
    nodes: list[onnx.NodeProto] = []

    def dequantized(name: str, scale: Any, zero: Any, **axis: int) -> str:
        stored[f"{name}.scale"], stored[f"{name}.zero"] = np.asarray(scale), np.asarray(zero)
        given = [name, f"{name}.scale", f"{name}.zero"]
        made = helper.make_node("DequantizeLinear", given, [f"{name}.real"], f"{name}.dq", **axis)
        nodes.append(made)
        return f"{name}.real"

    def quantized(name: str, scale: float, zero: int) -> str:
        codes = f"{name}.codes"
        node = helper.make_node(
            "QuantizeLinear", [name, f"{codes}.scale", f"{codes}.zero"], [codes], f"{name}.q"
        )
        nodes.append(node)
        return dequantized(codes, np.float32(scale), np.uint8(zero))

    names = [f"x{i}" for i in range(inputs)]
    read = [quantized(name, 0.02 + 0.013 * i, 120 + i) for i, name in enumerate(names)]
    if op in WEIGHTS:
        stored["w"] = random.integers(-127, 128, WEIGHTS[op], dtype=np.int8)
        axis = 0 if op == "Conv" else 1
        scale = random.uniform(0.001, 0.02, 5).astype(np.float32)
        read.append(dequantized("w", scale, np.zeros(5, np.int8), axis=axis))
        if bias:
            stored["b"] = random.integers(-900, 900, 5, dtype=np.int32)
            zero = np.zeros(5, np.int32)
            read.append(dequantized("b", scale * np.float32(0.02), zero, axis=0))
    alike = OPERATORS[op].same_params
    nodes.append(helper.make_node(op, read, ["r"], "op", **attributes))
    out = quantized("r", 0.02 if alike else 0.031, 120 if alike else 99)
    made = [numpy_helper.from_array(a, n) for n, a in stored.items()]
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in names],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
        made,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


WINDOW = {"kernel_shape": [3, 2], "strides": [2, 1]}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "add": ("Add", {"inputs": 2}),
    "mul": ("Mul", {"inputs": 2}),
    "concat": ("Concat", {"inputs": 3, "axis": 1}),
    "conv": ("Conv", {}),
    "conv with bias": ("Conv", {"bias": True, "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    "conv with holes": ("Conv", {"dilations": [2, 2]}),
    "gemm": ("Gemm", {}),
    "gemm with bias": ("Gemm", {"bias": True}),
    "matmul": ("MatMul", {}),
    "global average": ("GlobalAveragePool", {}),
    "average": ("AveragePool", WINDOW),
    "average with pads": ("AveragePool", {**WINDOW, "pads": [1, 0, 1, 1]}),
    "average of pads": ("AveragePool", {**WINDOW, "pads": [1, 0, 1, 1], "count_include_pad": 1}),
    "average to the end": ("AveragePool", {**WINDOW, "ceil_mode": 1}),
    "maximum": ("MaxPool", WINDOW),
    "maximum with pads": ("MaxPool", {**WINDOW, "pads": [1, 0, 1, 1]}),
    "maximum to the end": ("MaxPool", {**WINDOW, "ceil_mode": 1}),
    "sigmoid": ("Sigmoid", {}),
    "leaky relu": ("LeakyRelu", {"alpha": 0.3}),
    "softmax": ("Softmax", {}),
    "softmax over channels": ("Softmax", {"axis": 1}),
}


@pytest.mark.parametrize(("op", "options"), CASES.values(), ids=CASES.keys())
def test_a_row_equals_the_runtime(op: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = one(op, **options)
    onnx.save(model, tmp_path / "one.onnx")
    random = np.random.default_rng(7)
    shapes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input]
    found = compare_codes(
        tmp_path / "one.onnx", [[random.normal(0, 1.5, s).astype(np.float32) for s in shapes]]
    )
    assert found.exact, str(found)
    assert not found.float_steps
    kinds = {step.kind for step in lower(model).instructions}
    assert "integer" in kinds


@pytest.mark.parametrize("axis", [{}, {"axis": 2}, {"axis": -1}])
def test_a_softmax_of_opset_12_is_over_all_axes_behind_its_own(
    axis: dict[str, int], tmp_path: Path
) -> None:
    model = one("Softmax", **axis)
    model.opset_import[0].version = 12
    onnx.save(model, tmp_path / "one.onnx")
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    random = np.random.default_rng(7)
    given = [random.normal(0, 1.5, shape).astype(np.float32) for _ in range(2)]
    found = compare_codes(tmp_path / "one.onnx", [[x] for x in given])
    assert found.exact, str(found)


def test_every_row_has_a_case() -> None:
    assert {op for op, _ in CASES.values()} == set(OPERATORS)
    assert set(OPERATORS) <= set(SIGNED_OPERATORS)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "pads by the runtime": ("Conv", {"auto_pad": "SAME_UPPER"}, "auto_pad is not supported"),
    "a factor": ("Gemm", {"alpha": 2.0}, "alpha, beta or transA has no integer kernel"),
    "counted windows over the end": (
        "AveragePool",
        {**WINDOW, "ceil_mode": 1, "pads": [1, 0, 1, 1], "count_include_pad": 1},
        "ceil_mode with counted padding",
    ),
}


@pytest.mark.parametrize(("op", "options", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_has_no_kernel(op: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        lower(one(op, **options))


def params(scale: float, zero: int, qtype: QType = UINT8) -> QuantParams:
    return QuantParams(qtype, torch.tensor(scale), torch.tensor(zero))


def test_parameters_that_a_row_asks_for() -> None:
    def none(*_: Any) -> Any:
        raise AssertionError

    fixed, alike = Operator(none, fixed_output=(0.5, 3)), Operator(none, same_params=True)
    assert fixed.fits(params(0.1, 0), params(0.5, 3))
    assert not fixed.fits(params(0.1, 0), params(0.5, 4))
    assert alike.fits(params(0.1, 0), params(0.1, 0))
    assert not alike.fits(params(0.1, 0), params(0.1, 1))
