"""ONNX files as input: every operator against ONNX Runtime, names, dynamic sizes, refusals."""

import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.api.conversion import quantize
from qtool.core import graph as G
from qtool.core.errors import CaptureError
from qtool.core.graph.finite_outputs import check_weights
from qtool.frontends.captured_model import capture_model
from qtool.frontends.onnx.onnx_file import load_onnx
from qtool.frontends.onnx.onnx_module import OnnxModule
from qtool.frontends.onnx.operator_table import OPERATORS
from tests.backends.onnx.export.networks import run
from tests.conftest import Digits
from tests.frontends.onnx.files import behind_conv, loaded

INT64 = onnx.TensorProto.INT64
Arrays = list[Any]


def ramp(*shape: int) -> np.ndarray:
    """Multiples of 1/4 about zero: sums of products are exact in float32."""
    return ((np.arange(np.prod(shape)).reshape(shape) * 7 % 23 - 11) / 4).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def scalar(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def row(
    op: str, data: Arrays, constants: Sequence[Any] = (), outputs: int = 1, **attributes: Any
) -> Any:
    return op, data, list(constants), outputs, attributes


IMAGE, LINES, POSITIVE = ramp(2, 4, 6, 6), ramp(2, 3, 4), np.abs(ramp(3, 4)) + 0.5
TRUTH = ramp(3, 4) > 0
UNARY = [
    *("Relu", "Sigmoid", "HardSigmoid", "HardSwish", "Mish", "Softplus", "Tanh", "Erf", "Exp"),
    *("Abs", "Neg", "Floor", "Ceil", "Round", "Sin", "Cos", "Identity", "Softmax", "LogSoftmax"),
    *("LeakyRelu", "Elu", "Flatten", "Transpose", "Dropout", "Gelu", "com.microsoft.Gelu"),
    *("com.microsoft.FastGelu", "com.microsoft.QuickGelu"),
]
BINARY = [
    *("Add", "Sub", "Mul", "Pow", "Sum", "Min", "Max", "Equal", "Greater", "GreaterOrEqual"),
    *("Less", "LessOrEqual"),
]
ROWS: dict[str, Any] = {
    **{op: row(op, [ramp(3, 4)]) for op in UNARY},
    **{op: row(op, [POSITIVE]) for op in ("Log", "Sqrt", "Reciprocal")},
    **{op: row(op, [POSITIVE, np.abs(ramp(4)) + 1]) for op in (*BINARY, "Div")},
    **{f"{op} of a constant": row(op, [POSITIVE], [scalar(1.5)]) for op in ("Add", "Mul", "Min")},
    "Div of integers": row("Div", [np.array([-7, 7, 5]), np.array([2, 2, -3])]),
    "And": row("And", [TRUTH, TRUTH[:1]]),
    "Or": row("Or", [TRUTH, TRUTH[:1]]),
    "Not": row("Not", [TRUTH]),
    "Where": row("Where", [TRUTH, ramp(3, 4)], [scalar(0.5)]),
    "Conv": row("Conv", [IMAGE], [ramp(3, 4, 3, 3), ramp(3)], pads=[1] * 4, strides=[2, 1]),
    "Conv uneven pads": row("Conv", [IMAGE], [ramp(3, 4, 3, 2)], pads=[0, 1, 2, 1]),
    "Conv groups": row("Conv", [IMAGE], [ramp(4, 2, 3, 3)], group=2, dilations=[2, 2]),
    "Conv 1d": row("Conv", [LINES], [ramp(2, 3, 3)]),
    "ConvTranspose": row(
        "ConvTranspose", [IMAGE], [ramp(4, 3, 3, 3)], strides=[2, 2], output_padding=[1, 1]
    ),
    "Gemm": row("Gemm", [ramp(3, 4)], [ramp(5, 4), ramp(5)], transB=1),
    "Gemm, one bias": row("Gemm", [ramp(3, 4)], [ramp(5, 4), ramp(1)], transB=1),
    "Gemm, a row of biases": row("Gemm", [ramp(3, 4)], [ramp(5, 4), ramp(1, 5)], transB=1),
    "Gemm as it stands": row("Gemm", [ramp(3, 4)], [ramp(4, 5), ramp(5)]),
    "Gemm scaled": row("Gemm", [ramp(4, 3)], [ramp(4, 5), ramp(5)], transA=1, alpha=2.0, beta=0.5),
    "MatMul": row("MatMul", [LINES, ramp(4, 5)]),
    "MatMul of a constant": row("MatMul", [LINES], [ramp(4, 5)]),
    "MaxPool": row("MaxPool", [IMAGE], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "MaxPool uneven": row("MaxPool", [IMAGE], kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
    "AveragePool": row("AveragePool", [IMAGE], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "AveragePool counts": row(
        "AveragePool", [IMAGE], kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1
    ),
    "GlobalAveragePool": row("GlobalAveragePool", [IMAGE]),
    "GlobalMaxPool": row("GlobalMaxPool", [IMAGE]),
    "BatchNormalization": row(
        "BatchNormalization", [IMAGE], [ramp(4), ramp(4), ramp(4), np.abs(ramp(4)) + 1]
    ),
    "LayerNormalization": row("LayerNormalization", [LINES], [ramp(4), ramp(4)]),
    "Clip": row("Clip", [LINES], [scalar(-0.5), scalar(1.0)]),
    "Clip nothing": row("Clip", [LINES]),
    "Clip integers": row("Clip", [np.arange(-4, 5)], [np.array(-2), np.array(3)]),
    "Swish": row("Swish", [LINES]),
    "InstanceNormalization": row("InstanceNormalization", [IMAGE], [ramp(4), ramp(4)]),
    "GroupNormalization": row(
        "GroupNormalization", [IMAGE], [ramp(4), ramp(4)], num_groups=2, epsilon=1e-2
    ),
    "LayerNormalization broadcast": row("LayerNormalization", [LINES], [ramp(4)], axis=1),
    "Conv same": row("Conv", [IMAGE], [ramp(3, 4, 3, 2)], auto_pad="SAME_UPPER", strides=[2, 1]),
    "Conv same lower": row("Conv", [IMAGE], [ramp(3, 4, 2, 2)], auto_pad="SAME_LOWER"),
    "MaxPool same": row(
        "MaxPool", [IMAGE], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"
    ),
    "MaxPool of padding alone": row(
        "MaxPool", [IMAGE[..., :1]], kernel_shape=[1, 2], dilations=[1, 2], pads=[0, 1, 0, 1]
    ),
    "MaxPool wide pads": row(
        "MaxPool", [IMAGE], kernel_shape=[3, 3], strides=[1, 1], pads=[2, 2, 2, 2]
    ),
    "AveragePool uneven": row(
        "AveragePool", [IMAGE], kernel_shape=[2, 2], pads=[0, 1, 1, 0], count_include_pad=1
    ),
    "LSTM": row(
        "LSTM", [ramp(3, 2, 4)], [ramp(1, 12, 4), ramp(1, 12, 3), ramp(1, 24)], 3, hidden_size=3
    ),
    "LSTM both ways": row(
        "LSTM",
        [ramp(3, 2, 4)],
        [ramp(2, 12, 4), ramp(2, 12, 3), ramp(2, 24)],
        3,
        hidden_size=3,
        direction="bidirectional",
    ),
    "GRU": row(
        "GRU",
        [ramp(3, 2, 4)],
        [ramp(1, 9, 4), ramp(1, 9, 3), ramp(1, 18)],
        2,
        hidden_size=3,
        linear_before_reset=1,
    ),
    "RNN": row(
        "RNN",
        [ramp(3, 2, 4)],
        [ramp(1, 3, 4), ramp(1, 3, 3), ramp(1, 6)],
        2,
        hidden_size=3,
        activations=["Relu"],
    ),
    "PRelu along the last": row("PRelu", [ramp(2, 4, 4, 4)], [ramp(4)]),
    "PRelu along rows": row("PRelu", [IMAGE], [ramp(1, 6, 1)]),
    "Pow of integers": row("Pow", [np.arange(1, 5)], [scalar(2)]),
    "Gather from the end": row("Gather", [LINES], [ints(-1, 0)], axis=1),
    "GatherElements from the end": row("GatherElements", [LINES], [np.full((2, 1, 4), -1)], axis=1),
    "Resize doubled": row("Resize", [IMAGE], [None, np.array([1, 1, 2, 3], np.float32)]),
    "Resize nearest exact": row(
        "Resize",
        [IMAGE],
        [None, np.array([1, 1, 1.5, 2], np.float32)],
        nearest_mode="round_prefer_ceil",
    ),
    "SpaceToDepth": row("SpaceToDepth", [IMAGE], blocksize=2),
    "Clip from zero": row("Clip", [LINES], [scalar(0.0)]),
    "PRelu": row("PRelu", [IMAGE], [ramp(4, 1, 1)]),
    "Cast": row("Cast", [LINES], to=INT64),
    "Reshape": row("Reshape", [LINES], [ints(0, -1)]),
    "Flatten from 2": row("Flatten", [IMAGE], axis=2),
    "Transpose given": row("Transpose", [LINES], perm=[0, 2, 1]),
    "Squeeze": row("Squeeze", [ramp(2, 1, 3, 1)], [ints(1, -1)]),
    "Squeeze of no axes": row("Squeeze", [ramp(2, 1, 3, 1)], [np.zeros(0, np.int64)]),
    "Unsqueeze": row("Unsqueeze", [LINES], [ints(0, -1)]),
    "Concat": row("Concat", [LINES, LINES[:, :1]], axis=1),
    "Split": row("Split", [LINES], [ints(1, 3)], outputs=2, axis=2),
    "Split evenly": row("Split", [LINES], outputs=2, axis=2, num_outputs=2),
    **{
        f"Slice backwards from {start} to {end} by {step}": row(
            "Slice", [ramp(2, 5, 3)], [ints(start), ints(end), ints(1), ints(step)]
        )
        for start, end, step in (
            *((-1, -(2**62), -1), (3, 0, -2), (1, 2**63 - 1, -1), (1, 2**62, -1), (2**62, 1, -3)),
            *((-9, 2**62, -1), (-9, 0, -1)),
        )
    },
    "Slice of all samples backwards": row(
        "Slice", [ramp(2, 5, 3)], [ints(-1), ints(-(2**62)), ints(0), ints(-1)]
    ),
    "Slice": row("Slice", [LINES], [ints(1, 0), ints(2**62, -1), ints(1, 2), ints(1, 2)]),
    "Gather": row("Gather", [LINES], [ints(2, 0)], axis=1),
    "Gather one": row("Gather", [LINES], [np.array(1)], axis=2),
    "Gather a table": row("Gather", [ramp(5, 3), np.array([[1, 4], [0, 1]])]),
    "GatherElements": row("GatherElements", [LINES, np.zeros((2, 1, 4), np.int64)], axis=1),
    "Expand": row("Expand", [ramp(3, 1)], [ints(2, 1, 4)]),
    "Tile": row("Tile", [LINES], [ints(1, 2, 3)]),
    "Pad": row("Pad", [LINES], [ints(0, 1, 2, 0, 0, 1), scalar(1.5)]),
    "Pad axes": row("Pad", [LINES], [ints(2, 1), None, ints(-1)]),
    "Pad reflect": row("Pad", [LINES], [ints(0, 0, 2, 0, 0, 1)], mode="reflect"),
    "Resize nearest": row(
        "Resize",
        [IMAGE],
        [None, np.array([1, 1, 2, 2], np.float32)],
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    "Resize linear": row("Resize", [IMAGE], [None, None, ints(2, 4, 9, 12)], mode="linear"),
    "DepthToSpace": row("DepthToSpace", [IMAGE], blocksize=2),
    "DepthToSpace CRD": row("DepthToSpace", [IMAGE], blocksize=2, mode="CRD"),
    "Einsum": row("Einsum", [LINES, ramp(4, 2)], equation="abc,cd->abd"),
    "CumSum": row("CumSum", [LINES], [np.array(1)]),
    "ArgMax": row("ArgMax", [ramp(3, 5)], axis=1, keepdims=0),
    **{f"Reduce{k}": row(f"Reduce{k}", [LINES], [ints(1, 2)]) for k in ("Sum",)},
    **{f"Reduce{k}": row(f"Reduce{k}", [LINES], [ints(-1)], keepdims=0) for k in ("Max", "Min")},
    "ReduceMean": row("ReduceMean", [IMAGE], [ints(2, 3)], keepdims=0),
    "ReduceL2": row("ReduceL2", [LINES], [ints(1)]),
}
WITH_SIZES = {  # text of a graph whose sizes depend on the input's
    "view": "n = Shape <end=1> (x) s = Concat <axis=0> (n, minus) y = Reshape (x, s)",
    "arithmetic": """n = Shape (x) c = Gather <axis=0> (n, one) h = Div (c, two)
        u = Unsqueeze (h, zero) y = Slice (x, zeros, u, ones)""",
    "expand": "n = Shape (x) y0 = ConstantOfShape (n) y = Add (x, y0)",
    "range": """n = Shape (x) c = Gather <axis=0> (n, one) r = Range (nought, c, one)
        f = Cast <to = 1> (r) g = Unsqueeze (f, both) y = Mul (x, g)""",
    "squeeze": """n = Shape <start=1, end=2> (x) s = Squeeze (n) m = Mul (s, one)
        i = Cast <to = 7> (m) j = Sub (i, one) k = Unsqueeze (j, zero) l = Identity (k)
        p = Reshape (l, minus) y = Slice (x, p, big, ones)""",
    "expand as torch writes it": """n = Shape (x) r = Shape (n)
        o = ConstantOfShape <value = int64[1] {1}> (r) m = Mul (o, minus) e = Equal (n, m)
        w = Where (e, o, n) v = Expand (minus, w) f = Cast <to = 1> (v) y = Add (x, f)""",
    "part of a constant": """n = Shape <end=1> (x) s = Slice (table, zeros, n)
        f = Cast <to = 1> (s) y = Add (x, f)""",
}
CONSTANTS = {
    "minus": ints(-1),
    "table": np.arange(64).reshape(64, 1, 1),
    "one": np.array(1),
    "two": np.array(2),
    "zero": ints(0),
    "zeros": ints(0),
    "ones": ints(1),
    "nought": np.array(0),
    "both": ints(0, 2),
    "big": ints(2**62),
}


def model_of(op: str, data: Arrays, constants: Arrays, outputs: int, attributes: Any) -> Any:
    names = [f"x{i}" for i in range(len(data))]
    stored = {f"c{i}": c for i, c in enumerate(constants) if c is not None}
    inputs = [*names, *(f"c{i}" if c is not None else "" for i, c in enumerate(constants))]
    domain, _, kind = op.rpartition(".")
    made = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(kind, inputs, made, "the_node", domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(names, data, strict=True)
        ],
        [onnx.ValueInfoProto(name=n) for n in made],
        [numpy_helper.from_array(a, n) for n, a in stored.items()],
    )
    opset = {"Gelu": 20, "Swish": 24, "GroupNormalization": 21}.get(op, 18)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("name", list(ROWS))
def test_an_operator_computes_what_the_runtime_does(name: str) -> None:
    op, data, constants, outputs, attributes = ROWS[name]
    model = model_of(op, data, constants, outputs, attributes)
    inputs = tuple(torch.from_numpy(a.copy()) for a in data)
    expected = run(model, inputs, optimise=False)
    module = OnnxModule(model).eval()
    found = module(*inputs)
    module.observe(inputs)
    assert not module.fallback, "it is not read but kept"
    found = list(found) if isinstance(found, tuple) else [found]
    for a, b in zip(found, expected, strict=True):
        assert a.detach().numpy().dtype == b.dtype
        np.testing.assert_allclose(a.detach().numpy(), b, rtol=2e-6, atol=2e-6)


def test_every_operator_has_a_row() -> None:
    only_sizes = {"Shape", "ConstantOfShape", "Range"}  # in WITH_SIZES
    constants = {"EyeLike"}  # reads the sizes alone
    old = {"Upsample"}  # removed from ONNX in opset 10
    own = {"qtool.Linear"}  # made of MatMul and Gemm
    assert {op for op, *_ in ROWS.values()} | only_sizes | constants | old | own == set(OPERATORS)


@pytest.mark.parametrize("name", list(WITH_SIZES))
def test_sizes_are_calculated_and_stay_dynamic(name: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    g (float[N,4,3] x) => (float[A,B,C] y) {{ {WITH_SIZES[name]} }}"""
    model = onnx.parser.parse_model(text)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    used = {n for node in model.graph.node for n in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(a, n) for n, a in CONSTANTS.items() if n in used
    )
    file = tmp_path / "sizes.onnx"
    onnx.save(model, file)
    loaded = load_onnx(file)
    captured = capture_model(loaded, torch.from_numpy(ramp(2, 4, 3)))
    assert captured.graph.inputs[0].shape == ("N", 4, 3)
    assert not loaded.fallback
    other = torch.from_numpy(ramp(5, 4, 3))
    (expected,) = run(model, (other,), optimise=False)
    np.testing.assert_array_equal(captured.graph.module(other).numpy(), expected)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.last = nn.Conv2d(8, 4, 3, stride=2)
        self.head = nn.Linear(4 * 9, 5)

    def forward(self, image: torch.Tensor) -> Any:
        x = F.relu6(self.body(image))
        x = F.hardswish(self.last(x))
        return self.head(x.view(x.size(0), -1)), x.mean((2, 3))


def images(count: int) -> torch.Tensor:
    return torch.from_numpy(ramp(count, 3, 8, 8)) / 3


@functools.cache
def exported(dynamic: bool) -> bytes:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the exporter
        written = torch.onnx.export(
            Small().eval(),
            (images(4),),
            input_names=["in"],  # a keyword of Python
            output_names=["scores.out", "mean:0"],
            dynamic_shapes=({0: torch.export.Dim("N")},) if dynamic else None,
            dynamo=True,
            verbose=False,
        )
    return written.model_proto.SerializeToString()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.onnx"
    file.write_bytes(exported(True))
    return file


def test_a_file_of_torch_onnx_is_quantized_with_its_names(small: Path) -> None:
    found = quantize(load_onnx(small), [images(8)], accuracy="fast")
    result = found.verify()
    assert result.passed
    assert result.coverage.share == 1
    assert {"last", "head"} <= {d.node for d in found.plan.nodes}
    written = found.to_onnx()
    assert [i.name for i in written.graph.input] == ["in"]
    assert [o.name for o in written.graph.output] == ["scores.out", "mean:0"]
    assert written.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"


def test_calibration_files_fit_files(small: Path, tmp_path: Path) -> None:
    saved = tmp_path / "c.calib"
    qtool.calibrate(load_onnx(small), [{"in": images(8)}]).save(saved)
    found = qtool.convert(load_onnx(small), saved, accuracy="fast")
    assert found.verify().passed
    assert found.graph.inputs[0].shape[0] == "N"


@pytest.mark.parametrize(("version", "noted"), [(3, False), (8, True)])
def test_weights_as_inputs_are_noted(version: int, noted: bool, tmp_path: Path) -> None:
    """CenterFace of a package: 15 ms in float, and 1.8 ms with weights as initializers alone."""
    model = behind_conv("y0 = Relu (h)", opset=8)
    model.ir_version = version
    for stored in model.graph.initializer:
        info = helper.make_tensor_value_info(stored.name, stored.data_type, stored.dims)
        model.graph.input.append(info)
    data, file = torch.randn(32, 3, 8, 8), tmp_path / "int8.onnx"
    quantized = quantize(loaded(model, tmp_path), [data], recover=[])
    quantized.export(file)
    result = qtool.evaluate(file, tmp_path / "model.onnx", data, seconds=0)
    for texts in (quantized.notes, result.accuracy.warnings):
        assert any("float file lists weights as inputs" in text for text in texts) is noted


def test_a_fixed_batch_stays_fixed(tmp_path: Path) -> None:
    file = tmp_path / "fixed.onnx"
    file.write_bytes(exported(False))
    captured = capture_model(load_onnx(file), images(4))
    assert captured.graph.inputs[0].shape == (4, 3, 8, 8)
    with pytest.raises(CaptureError, match=r"input 'in' of the file is float32\[4, 3, 8, 8\], the"):
        capture_model(load_onnx(file), images(3))
    assert capture_model(load_onnx(file), images(8)).graph.inputs[0].shape == (4, 3, 8, 8)


def test_our_own_float_file_gives_the_plan_of_the_model(
    digits: Digits, digits_model: nn.Module, tmp_path: Path
) -> None:
    x = torch.from_numpy(digits.calibration_images[:32])
    captured, file = capture_model(digits_model, x), tmp_path / "digits.onnx"
    captured.export_float(file)
    again = capture_model(load_onnx(file), x)
    assert [(d.node, d.execution) for d in again.plan().nodes] == [
        (d.node, d.execution) for d in captured.plan().nodes
    ]
    first, second = quantize(captured, [x], accuracy="fast"), quantize(again, [x], accuracy="fast")
    assert torch.equal(first(x), second(x))
    assert second.verify().exactness.exact  # type: ignore[union-attr]  # this target runs here


LABELS = {
    "/layer1/layer1.0/conv1/Conv": "layer1.0.conv1",
    "/fc/Gemm": "fc",
    "/Conv_3": "Conv_3",
    "/layer1/layer1.0/Relu_1": "layer1.0.relu_1",
    "block.conv": "block.conv",
    "": "y0",
}


@pytest.mark.parametrize(("given", "expected"), LABELS.items())
def test_nodes_have_readable_names(given: str, expected: str) -> None:
    kind = next((k for k in ("Gemm", "Relu") if k in given), "Conv")
    attributes = {"transB": 1} if kind == "Gemm" else {}
    data = ramp(2, 4) if kind == "Gemm" else IMAGE
    weights = {"Gemm": [ramp(3, 4)], "Conv": [ramp(3, 4, 3, 3)]}
    model = model_of(kind, [data], weights.get(kind, []), 1, attributes)
    model.graph.node[0].name = given
    captured = capture_model(OnnxModule(model).eval(), torch.from_numpy(data))
    assert [G.name_of(n) for n in G.calls(captured.graph.graph)] == [expected]


def test_a_bias_added_behind_a_product_is_part_of_the_layer() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[N,2,4] x) => (float[N,2,3] y) <float[3] b = {1, 2, 3}> {
        p = MatMul (x, w)
        y = Add (b, p)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(ramp(4, 3), "w"))
    found = OnnxModule(model).eval()
    assert [n.key for n in found.nodes] == ["qtool.Linear"]
    x = torch.from_numpy(ramp(5, 2, 4))
    (expected,) = run(model, (x,), optimise=False)
    np.testing.assert_array_equal(found(x).detach().numpy(), expected)


def test_a_weight_may_be_called_what_the_exporter_calls_its_constants(tmp_path: Path) -> None:
    """torch.onnx calls them val_0, val_1 and so on: files of its own hold such weights."""
    count = 12
    lines = [f"s{i + 1} = Add (s{i}, val_{i})" for i in range(1, count)]
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    g (float[N,4,3] x) => (float[N,4,6] s{count}) {{
        s1 = MatMul (x, val_0) {" ".join(lines)} }}"""
    model = onnx.parser.parse_model(text)
    for i in range(count):
        array = ramp(3, 6) if i == 0 else ramp(4, 6) + i
        model.graph.initializer.append(numpy_helper.from_array(array, f"val_{i}"))
        model.graph.node[i].name = f"node{i}"
    file = tmp_path / "named.onnx"
    onnx.save(model, file)
    assert (
        quantize(load_onnx(file), [torch.from_numpy(ramp(2, 4, 3))], accuracy="fast")
        .verify()
        .passed
    )


def test_a_mask_in_a_file_may_be_infinite(tmp_path: Path) -> None:
    """torch.onnx writes the mask of causal attention so; it is an initializer as weights are."""
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]> g (float[N,4,8] x) => (float[N,4,8] y) {
            k = Transpose <perm = [0, 2, 1]> (x)
            s = MatMul (x, k)
            m = Add (s, mask)
            p = Softmax <axis = -1> (m)
            v = MatMul (x, w)
            y = MatMul (p, v)
        }"""
    )
    for name, array in (("mask", mask), ("w", ramp(8, 8))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "masked.onnx")
    quantized = quantize(
        load_onnx(tmp_path / "masked.onnx"), [torch.from_numpy(ramp(4, 4, 8))], accuracy="fast"
    )
    assert quantized.fidelity.worst > 20


def test_inputs_left_out_at_the_end(tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 ends the process at such a file."""
    text = "agraph (float[n, 4] x) => (float[n, 4] y) { y = LayerNormalization (x, g) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "g"))
    model.graph.node[0].input.append("")
    onnx.save(model, tmp_path / "left.onnx")
    graph = capture_model(load_onnx(tmp_path / "left.onnx"), torch.randn(3, 4)).graph
    x = torch.randn(2, 4)
    torch.testing.assert_close(graph.module(x), torch.nn.functional.layer_norm(x, (4,)))


def test_names_of_any_script(tmp_path: Path) -> None:
    model = model_of("Conv", [IMAGE], [ramp(3, 4, 3, 3)], 1, {})
    node, graph = model.graph.node[0], model.graph
    graph.input[0].name = node.input[0] = "层"
    graph.initializer[0].name = node.input[1] = "вес"
    node.name, graph.output[0].name = "слой", "出"
    node.output[0] = "出"
    file = tmp_path / "names.onnx"
    onnx.save(model, file)
    found = quantize(load_onnx(file), [torch.from_numpy(IMAGE)], accuracy="fast")
    assert found.verify().passed
    written = found.to_onnx()
    assert [i.name for i in written.graph.input] == ["层"]
    assert [o.name for o in written.graph.output] == ["出"]


def test_a_mask_of_minus_infinity_is_no_damaged_weight(tmp_path: Path) -> None:
    model = behind_conv("p = IsNaN (h) y0 = Where (p, mask, h)")
    model.graph.initializer.append(numpy_helper.from_array(np.float32(-np.inf), "mask"))
    module = loaded(model, tmp_path)
    check_weights(module)


def test_operators_before_opset_13_name_the_converter(tmp_path: Path) -> None:
    """ONNX Runtime has no kernel for this Gemm."""
    text = """<ir_version: 8, opset_import: ["" : 6]>
    g (float[N,4] x) => (float[N,4] y) { y = Gemm <broadcast = 1> (x, w, b) }"""
    model = onnx.parser.parse_model(text)
    for name, shape in (("w", (4, 4)), ("b", (4,))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    with pytest.raises(CaptureError, match=r"convert it with onnx.version_converter"):
        capture_model(loaded(model, tmp_path), torch.randn(3, 4))
