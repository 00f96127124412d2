"""Floats times stored codes of 8 bits: the runtime's MatMulNBits, and when it stays in float."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from tests.backends.onnxruntime.kernels.oracle import VNNI

RNG = np.random.default_rng(0)
INPUTS, OUTPUTS = 70, 13  # no whole blocks, no whole fours
SIGNED = RNG.integers(-127, 128, (INPUTS, OUTPUTS)).astype(np.int8)
UNSIGNED = RNG.integers(0, 256, (INPUTS, OUTPUTS)).astype(np.uint8)
SCALE = RNG.uniform(0.001, 0.01, OUTPUTS).astype(np.float32)
BIAS = RNG.standard_normal(OUTPUTS).astype(np.float32)
X = RNG.standard_normal((5, INPUTS)).astype(np.float32)


def model(
    op: str = "Gemm",
    weight: Any = SIGNED,
    scale: Any = SCALE,
    zero: Any = None,
    bias: Any = BIAS,
    behind: str | None = None,
    given: dict[str, Any] | None = None,
    **dequantize: Any,
) -> onnx.ModelProto:
    arrays = {"w": weight, "s": np.asarray(scale), "z": zero, "b": bias if op == "Gemm" else None}
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items() if a is not None]
    codes = [n for n in ("w", "s", "z") if arrays[n] is not None]
    read = ["x", "real", *(["b"] if arrays["b"] is not None else [])]
    nodes = [
        helper.make_node("DequantizeLinear", codes, ["real"], "real", **dequantize),
        helper.make_node(op, read, ["p"], "product", **(given or {})),
        helper.make_node(behind or "Neg", ["p", *(["p"] if behind == "Add" else [])], ["y"]),
    ]
    if behind == "QuantizeLinear":
        nodes[-1] = helper.make_node(behind, ["p", "one"], ["y"])
        stored.append(numpy_helper.from_array(np.float32(1), "one"))
    kind = TensorProto.UINT8 if behind == "QuantizeLinear" else TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", INPUTS])]
    outputs = [helper.make_tensor_value_info("y", kind, ["n", None])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


FUSED: dict[str, dict[str, Any]] = {
    "as qtool writes it": {"zero": np.zeros(OUTPUTS, np.int8), "axis": 1},
    "no zero point": {},
    "no bias": {"bias": None},
    "of several dimensions": {"op": "MatMul"},
    "unsigned": {"weight": UNSIGNED, "zero": np.full(OUTPUTS, 7, np.uint8)},
    "unsigned from zero": {"weight": UNSIGNED},
    "one scale": {"scale": SCALE[0], "zero": np.int8(3)},
}
FLOAT: dict[str, dict[str, Any]] = {
    "turned": {"weight": SIGNED.T.copy(), "axis": 0, "given": {"transB": 1}},
    "multiplied": {"given": {"alpha": 2.0}},
    "counted from the end": {"axis": -1},
    "one scale in a list": {"scale": SCALE[:1]},
    "quantized behind": {"behind": "QuantizeLinear"},
    "bias for all": {"bias": BIAS[:1]},
}


def kernels(made: onnx.ModelProto, **options: Any) -> list[str]:
    return [s.kind for s in lower(made, **options).instructions if s.name == "product"]


@VNNI
@pytest.mark.parametrize("given", FUSED.values(), ids=FUSED.keys())
def test_what_the_runtime_makes_a_product_of_codes(given: dict[str, Any]) -> None:
    made = model(**given)
    assert kernels(made) == ["integer"]
    assert kernels(made, as_written=True) != ["integer"]
    (mine,) = lower(made)(torch.from_numpy(X))
    (found,) = ort.InferenceSession(made.SerializeToString()).run(None, {"x": X})
    assert np.array_equal(mine.numpy(), found)


@pytest.mark.parametrize("given", FLOAT.values(), ids=FLOAT.keys())
def test_what_stays_a_product_of_floats(given: dict[str, Any]) -> None:
    made = model(**given)
    assert "integer" not in kernels(made)
    (found,) = ort.InferenceSession(made.SerializeToString()).run(None, {"x": X})
    (mine,) = lower(made)(torch.from_numpy(X))
    assert np.array_equal(mine.numpy(), found)


@VNNI
@pytest.mark.parametrize("outputs", [OUTPUTS, 6, 0])
@pytest.mark.parametrize("shared", ["w", "s", "ws", "wsz", "z", ""])
def test_weights_that_two_layers_read(shared: str, outputs: int) -> None:
    """A reused module: the runtime takes codes and scales of one layer alone. 0: one scale."""
    few = outputs or 6
    arrays = {"w": SIGNED[:, :few], "s": SCALE[:few], "z": np.zeros(few, np.int8)}
    if not outputs:
        arrays |= {"s": SCALE[0], "z": np.int8(0)}
    stored, nodes = [], []
    for i in (0, 1):
        names = {n: n if n in shared else f"{n}{i}" for n in arrays}
        new = {name: n for n, name in names.items() if name not in {t.name for t in stored}}
        stored += [numpy_helper.from_array(np.asarray(arrays[n]), name) for name, n in new.items()]
        nodes += [
            helper.make_node("DequantizeLinear", list(names.values()), [f"real{i}"], f"real{i}"),
            helper.make_node("MatMul", ["x", f"real{i}"], [f"p{i}"], f"product{i}"),
            helper.make_node("Neg", [f"p{i}"], [f"y{i}"]),
        ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", INPUTS])]
    results = [
        helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, ["n", few]) for i in (0, 1)
    ]
    graph = helper.make_graph(nodes, "g", inputs, results, stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    mine = lower(made)(torch.from_numpy(X))
    found = ort.InferenceSession(made.SerializeToString()).run(None, {"x": X})
    assert all(np.array_equal(a.numpy(), b) for a, b in zip(mine, found, strict=True))


def test_an_add_behind_a_product_is_the_runtimes() -> None:
    """It becomes a bias inside, which is added before what zero points take away."""
    assert kernels(model(op="MatMul", behind="Add")) != ["integer"]


@VNNI
def test_as_written_it_is_a_product_of_floats(tmp_path: Any) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    file = ExportedFile(path)
    fused = file.program()
    assert file.program_as_written(fused) is not fused
    onnx.save(model(given={"alpha": 2.0}), path)
    other = ExportedFile(path)
    assert other.program_as_written(other.program()) is other.program()


READERS: dict[str, tuple[str, bool]] = {
    "a Relu": ("p = Gemm (x, real, b) c = Relu (p) y = Neg (c)", True),
    "a Relu, product without a bias": ("p = MatMul (x, real) c = Relu (p) y = Neg (c)", True),
    "a Clip": ("p = Gemm (x, real, b) c = Clip (p, low) y = Neg (c)", True),
    "a Relu that is an output": ("p = Gemm (x, real, b) y = Relu (p)", False),
    "a Relu with two readers": (
        "p = Gemm (x, real, b) c = Relu (p) d = Neg (c) y = Mul (c, d)",
        False,
    ),
    "a Relu that is read twice": ("p = Gemm (x, real, b) c = Relu (p) y = Mul (c, c)", False),
    "a Relu and others": ("p = Gemm (x, real, b) c = Relu (p) d = Neg (p) y = Mul (c, d)", False),
    "another function": ("p = Gemm (x, real, b) c = Tanh (p) y = Neg (c)", False),
    "an Add of a number": ("p = MatMul (x, real) y = Add (p, low)", False),
    "an Add of a tensor of more dimensions": ("p = MatMul (x, real) y = Add (more, p)", False),
    "an Add and others": ("p = MatMul (x, real) c = Add (p, b) d = Neg (p) y = Mul (c, d)", False),
}
"""What reads a product -> whether the product is one of floats."""


@VNNI
@pytest.mark.parametrize(("body", "floats"), READERS.values(), ids=READERS.keys())
def test_what_reads_a_product_decides_whether_it_is_one_of_floats(body: str, floats: bool) -> None:
    made = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[5, {INPUTS}] x) => (float y)
        {{ real = DequantizeLinear <axis = 1> (w, s) {body} }}"""
    )
    more = np.ones((2, 1, OUTPUTS), np.float32)
    stored = {"w": SIGNED, "s": SCALE, "b": BIAS, "low": np.float32(-0.5), "more": more}
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(a), n) for n, a in stored.items()
    )
    made.graph.output[0].type.tensor_type.ClearField("shape")
    (product,) = (n for n in made.graph.node if n.op_type in ("Gemm", "MatMul"))
    product.name = "product"
    assert ("integer" not in kernels(made)) == floats
    (mine,) = lower(made)(torch.from_numpy(X))
    (found,) = ort.InferenceSession(made.SerializeToString()).run(None, {"x": X})
    if floats:  # products of floats, in another order of the sums
        np.testing.assert_allclose(mine.numpy(), found, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(mine.numpy(), found)


TURN = "turned = Transpose (x) "
SAID = "turned = Transpose <perm = [1, 0]> (x) "
TURNED: dict[str, tuple[str, bool]] = {
    "behind a Transpose": (f"{TURN} y = Gemm (turned, real, b)", True),
    "behind one that others read": (f"{TURN} y = Gemm (turned, real, b) z = Neg (turned)", False),
    "behind one and a Reshape to the same sizes": (
        f"{SAID} same = Reshape (turned, sizes) y = Gemm (same, real, b)",
        True,
    ),
    "the same without an order said": (
        f"{TURN} same = Reshape (turned, sizes) y = Gemm (same, real, b)",
        False,
    ),
    "before one": (f"{TURN} t = Neg (turned) p = Gemm (t, real) y = Transpose (p)", True),
    "before one, with a bias": (
        f"{TURN} t = Neg (turned) p = Gemm (t, real, b) y = Transpose (p)",
        False,
    ),
    "before one and others": (
        f"{TURN} t = Neg (turned) p = Gemm (t, real) y = Transpose (p) z = Neg (p)",
        False,
    ),
    "MatMul behind one": (f"{TURN} y = MatMul (turned, real)", False),
}


@VNNI
@pytest.mark.parametrize(("body", "floats"), TURNED.values(), ids=TURNED.keys())
def test_a_transpose_that_a_gemm_takes_in_keeps_it_in_float(body: str, floats: bool) -> None:
    outputs = "y, z" if "z = " in body else "y"
    made = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[{INPUTS}, 5] x) => ({outputs})
        <int64[2] sizes = {{5, {INPUTS}}}, float[5, {INPUTS}] turned, float[5, {INPUTS}] same>
        {{ real = DequantizeLinear <axis = 1> (w, s) {body} }}"""
    )
    stored = {"w": SIGNED, "s": SCALE, "b": BIAS}
    made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in stored.items())
    (product,) = (n for n in made.graph.node if n.op_type in ("Gemm", "MatMul"))
    product.name = "product"
    assert ("integer" not in kernels(made)) == floats
    mine = lower(made)(torch.from_numpy(X.T.copy()))
    found = ort.InferenceSession(made.SerializeToString()).run(None, {"x": X.T.copy()})
    for a, b in zip(mine, found, strict=True):
        if floats:  # products of floats, in another order of the sums
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(a.numpy(), b)
