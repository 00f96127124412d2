"""The targets, their rules and their forms of files."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.api.conversion import quantize
from qtool.backends.onnxruntime.verification.planned_file import Expected, check_structure
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import VerificationError
from qtool.core.ops import OPS
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, run_passes
from qtool.planning.plan import Execution, Kind
from qtool.planning.targets import TARGETS, Target, target
from qtool.planning.targets.rules import MIN_TABLE_SIZE, TOO_SMALL, stored_weights
from tests.passes.differential import Function, rewritten
from tests.planning.targets.converted import captured, converted, network, samples, step, written


@pytest.mark.parametrize(("rows", "refusal"), [(0, None), (-1, TOO_SMALL)])
def test_a_table_of_the_least_size_is_stored_as_codes(rows: int, refusal: str | None) -> None:
    model = nn.Embedding(MIN_TABLE_SIZE // 64 + rows, 64).eval()
    captured = capture_module(model, Batch((torch.zeros(2, 3, dtype=torch.int64),)))
    run_passes(captured.module, CANONICAL)
    (lookup,) = (node for node in captured.graph.nodes if node.op == "call_function")
    assert stored_weights(lookup) == refusal


@pytest.mark.parametrize("each", TARGETS.values(), ids=lambda t: t.name)
def test_tables_are_consistent(each: Target) -> None:
    keys = {row.key for row in OPS.values()}
    assert each.kernels.keys() | each.no_kernel.keys() <= keys
    assert not each.kernels.keys() & each.no_kernel.keys(), "a kernel, or a reason for none"
    assert each.file.passthrough_on_codes <= each.kernels.keys()
    assert each.description
    assert all(reason.strip() for reason in each.no_kernel.values())


def _divided(x: torch.Tensor) -> torch.Tensor:
    return F.avg_pool2d(x, 3, 2, ceil_mode=True, divisor_override=3)


REFUSALS_OF_ONNXRUNTIME = {
    "conv": ("conv", nn.Conv2d(3, 3, 1), None),
    "conv in float64": ("conv", nn.Conv2d(3, 3, 1).double(), "not float32"),
    "computed weight": (
        "conv",
        Function(lambda x: F.conv2d(x, x[:1, :, :1, :1])),
        "its weight is computed at run time",
    ),
    "computed bias": (
        "conv",
        Function(lambda x, c: F.conv2d(x, c.weight, x.mean((0, 2, 3))), nn.Conv2d(3, 3, 1)),
        "its bias is computed at run time",
    ),
    "sum": ("add", Function(lambda x: x + x), None),
    "sum with a number": ("add", Function(lambda x: x + 2), "a scalar"),
    "product with a number": ("mul", Function(lambda x: x * 2.0), "a scalar"),
    "integers": ("add", Function(lambda x: x + torch.arange(4)), "int64, not float"),
    "pool": ("average_pool", nn.AvgPool2d(2), None),
    "pool, other divisor": ("average_pool", Function(_divided), "divisor"),
    "zeros": ("pad", nn.ZeroPad2d(1), None),
    "ones": ("pad", nn.ConstantPad2d(1, 1.0), "other than zero"),
    "gather": ("pass", Function(lambda x: x.index_select(1, torch.tensor([1, 0]))), None),
    "moved float64": ("pass", Function(lambda x: x.double()[:, 1:]), "not float32"),
}


@pytest.mark.parametrize(
    ("key", "model", "reason"), REFUSALS_OF_ONNXRUNTIME.values(), ids=REFUSALS_OF_ONNXRUNTIME
)
def test_refusals_of_onnxruntime(key: str, model: nn.Module, reason: str | None) -> None:
    if isinstance(model, nn.Conv2d) and model.weight.dtype is torch.float64:
        model = nn.Sequential(Function(lambda x: x.double()), model)
    graph = rewritten(model, (2, 3, 4, 4)).graph.graph
    nodes = [n for n in G.calls(graph) if n.target in OPS and OPS[n.target].key == key]
    found = target("onnxruntime").kernels[key].refuse(nodes[-1])
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("first", "integer"),
    [
        pytest.param(nn.Conv3d(1, 8, 3, groups=1), False, id="one channel"),
        pytest.param(nn.Conv3d(3, 8, 3), False, id="a clip"),
        pytest.param(nn.Conv3d(3, 8, 2, stride=2), True, id="patches"),
        pytest.param(nn.Conv3d(4, 8, 3), True, id="more channels"),
        pytest.param(nn.Conv3d(8, 8, 3, groups=2), False, id="narrow groups"),
        pytest.param(nn.Conv3d(16, 8, 3, groups=2), True, id="wide groups"),
        pytest.param(nn.Conv3d(8, 8, 3, groups=8), True, id="depthwise"),
    ],
)
def test_volumes_of_few_channels(first: nn.Conv3d, integer: bool) -> None:
    model = nn.Sequential(first, nn.ReLU(), nn.Conv3d(8, 4, 3)).eval()
    captured = qtool.capture_model(model, torch.randn(2, first.in_channels, 8, 8, 8))
    found = {d.node: d for d in captured.plan().nodes}["0"]
    assert (found.execution is Execution.INTEGER) is integer
    assert integer or "few channels" in found.reason


def test_the_layer_behind_an_add_gives_float_and_the_skip_codes() -> None:
    plan = captured("residual_concat").plan("tensorrt")
    rows = {node: (form, output != "float") for node, _, form, output, _ in plan.rows()}
    assert rows["second"] == ("integer", False)  # fused with the add and the relu behind
    assert rows["relu"] == ("fused", True)  # read by the layer and, around it, by the add
    assert rows["add"] == ("integer", False)
    readers = {e.user for e in plan.point("relu").edges}
    assert readers == {"second", "add"}


def test_inputs_of_layers_are_quantized_and_their_outputs_are_not() -> None:
    plan = captured("depthwise").plan("tensorrt")
    assert all(plan.decision(n).output is None for n in ("expand", "depthwise", "project"))
    assert {"x", "relu6", "relu6_2"} <= {p.name for p in plan}
    assert {p.name for p in plan if p.kind is Kind.ACTIVATION} == {"x", "relu6", "relu6_2"}


def test_the_file_has_zero_points_of_zero_and_float_biases() -> None:
    file = written("residual_concat", "tensorrt")
    arrays = {i.name: numpy_helper.to_array(i) for i in file.graph.initializer}
    makers = {o: n for n in file.graph.node for o in n.output}
    pairs = [n for n in file.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert pairs
    assert not any(arrays[n.input[2]].any() for n in pairs)
    assert all(arrays[n.input[2]].dtype == np.int8 for n in pairs)
    layers = [n for n in file.graph.node if n.op_type in ("Conv", "Gemm")]
    assert len(layers) == 4
    assert all(arrays[n.input[2]].dtype == np.float32 for n in layers)
    assert all(makers[n.input[0]].op_type == "DequantizeLinear" for n in layers)


@pytest.mark.parametrize(
    ("part", "changed", "reason"),
    [
        ("zero_point", np.array(3, np.int8), "its zero point must be 0"),
        ("bias", None, "its bias is not a float constant"),
    ],
)
def test_structure_knows_what_the_target_wants(
    part: str, changed: np.ndarray | None, reason: str
) -> None:
    made_for = "tensorrt" if changed is not None else "onnxruntime"
    file = onnx.ModelProto()
    file.CopyFrom(written("depthwise", made_for))
    if changed is not None:
        (zero,) = (i for i in file.graph.initializer if i.name == "relu6.zero_point")
        zero.CopyFrom(numpy_helper.from_array(changed, zero.name))
    integer = {
        d.node
        for d in converted("depthwise", made_for).plan.nodes
        if d.execution is Execution.INTEGER
    }
    wanted = Expected(integer_bias=False, symmetric=frozenset({"int8"} if changed else ()))
    with pytest.raises(VerificationError, match=reason):
        check_structure(file, integer, wanted)


ov: Any = pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: install the package openvino"
)

CODES, LARGEST = 0.5, 2.5
"""Accepted distance from fake quantization, in codes of the output: root of the mean square, and
largest. OpenVINO accumulates in int32 and rescales, adds biases and rounds in float32, in another
order of operations: a value next to a tie may get the neighbouring code, and some of them meet in
one output of these networks, as independent noise (0.41 in `digits`) whose largest of 640 values
lies about five times as far."""

INTEGER = ("Convolution", "FullyConnected", "MatMul", "Concatenation", "Pooling")


def compiled(name: str) -> Any:
    core = ov.Core()
    model = core.read_model(written(name, "openvino").SerializeToString())
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    return core.compile_model(model, "CPU", settings)


@pytest.mark.parametrize("name", ["digits", "residual_concat", "depthwise"])
def test_openvino_computes_what_fake_quantization_does(name: str) -> None:
    model, x = converted(name, "openvino"), samples(name)[:64]
    found = compiled(name)(x.numpy())[0]
    with torch.no_grad():
        fake, real = model(x).numpy(), network(name)(x).numpy()
    code = step(model, fake)
    assert np.ptp(fake) > 50 * code  # there is something to compare
    assert np.sqrt(np.square(found - fake).mean()) <= CODES * code
    assert np.abs(found - fake).max() <= LARGEST * code
    assert np.abs(found - real).max() <= 8 * code


@pytest.mark.parametrize("name", ["digits", "residual_concat", "depthwise"])
def test_every_layer_runs_in_integers(name: str) -> None:
    rows = [node.get_rt_info() for node in compiled(name).get_runtime_model().get_ops()]
    text = [{k: str(r[k].astype(str)) for k in ("layerType", "primitiveType")} for r in rows]
    ours = [t for t in text if t["layerType"] in INTEGER]
    layers = sum(p.kind is Kind.WEIGHT for p in converted(name, "openvino").plan)
    assert sum(t["layerType"] in INTEGER[:3] for t in ours) == layers
    if any("avx512" in t["primitiveType"] for t in text):  # which forms exist depends on the CPU
        assert all(t["primitiveType"].endswith("I8") for t in ours), ours


@pytest.mark.parametrize("tokens", [16, 5])
def test_a_linear_layer_without_bias_on_tokens_is_right(tokens: int) -> None:
    """As many tokens as channels: without what holds it OpenVINO mixes them up and says nothing."""
    torch.manual_seed(0)
    model, x = nn.Linear(16, 16, bias=False).eval(), torch.randn(4, tokens, 16)
    assert quantize(model, [x], target="openvino", accuracy="fast").verify().passed
