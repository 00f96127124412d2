"""What a person adds from their own file stands beside what was there."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import fx, nn

import qtool
from qtool.core import graph as G
from qtool.core.errors import PassError, PlanError
from qtool.observers import MinMax, Option
from qtool.passes import GraphPass
from qtool.planning.plan import Execution
from qtool.planning.targets import TARGETS, KernelRule
from tests.backends.onnx.operators.outside import Gate, GateNetwork, gate, restored, write_gate

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    with restored():
        yield


def data(*shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(32, *shape, generator=generator) for _ in range(2)]


def quantized(model: nn.Module, *shape: int, **options: Any) -> qtool.QuantizedModel:
    return qtool.quantize(model.eval(), data(*shape), accuracy="fast", **options)


def network() -> nn.Module:
    torch.manual_seed(0)
    return GateNetwork()


def gate_macs(x: tuple[int, ...], w: tuple[int, ...], r: tuple[int, ...], *rest: object) -> int:
    return x[0] * (w[0] * w[1] + r[0] * r[1])


def own_kernel(*args: torch.Tensor, slope: float) -> torch.Tensor:
    return gate(*args, slope)


@pytest.mark.parametrize("kernel", [None, own_kernel], ids=["runtime", "own kernel"])
def test_an_operator_is_one_node_with_a_function(
    tmp_path: Path, kernel: Callable[..., Any] | None
) -> None:
    qtool.register_operator(gate, onnx=Gate, weights=("weight", "r"), macs=gate_macs, kernel=kernel)
    model = quantized(network(), 8)
    found = model.export(tmp_path / "gate.onnx")
    written = onnx.load(tmp_path / "gate.onnx")
    types = {i.name: i.data_type for i in written.graph.initializer}
    row = next(r for r in found.coverage.rows if r.name == "gate")
    decided = model.plan.decision("gate")
    assert (decided.execution, decided.macs) == (Execution.WEIGHTS, 512)
    assert [n.op_type for n in written.graph.node if n.domain == "qtool_tests"] == ["Gate"]
    assert [f.name for f in written.functions] == ["Gate"]
    assert types["gate.weight.codes"] == types["gate.r.codes"] == onnx.TensorProto.INT8
    assert (row.kernel, row.integer, row.weights_only, row.macs) == (
        "qtool_tests",
        False,
        True,
        512,
    )
    assert found.exactness.exact
    assert found.parity.optimised.worst < 1e-3  # codes: floats of two libraries apart, no rounding


def test_an_operator_is_the_nodes_that_a_person_writes(tmp_path: Path) -> None:
    qtool.register_operator("qtool_tests::gate", onnx=write_gate, weights=("weight",))
    model = quantized(network(), 8)
    found = model.export(tmp_path / "gate.onnx")
    written = onnx.load(tmp_path / "gate.onnx")
    types = Counter(n.op_type for n in written.graph.node)
    assert types["LeakyRelu"] == types["Tanh"] == 1
    assert not written.functions
    assert {n.domain for n in written.graph.node} == {""}
    assert found.exactness.exact
    assert found.parity.optimised.worst < 1e-3  # codes: floats of two libraries apart, no rounding


def test_without_weights_it_stays_in_float(tmp_path: Path) -> None:
    qtool.register_operator(torch.ops.qtool_tests.gate, onnx=Gate)
    model = quantized(network(), 8)
    decision = model.plan.decision("gate")
    assert (decision.execution, decision.reason) == (
        Execution.FLOAT,
        "no integer kernel on onnxruntime",
    )
    assert model.export(tmp_path / "gate.onnx").exactness.exact


@pytest.mark.parametrize("target", ["onnxruntime-arm", "openvino", "tensorrt", "tflite"])
def test_it_is_written_for_every_target(tmp_path: Path, target: str) -> None:
    body = write_gate if target == "openvino" else Gate  # OpenVINO takes no functions
    qtool.register_operator(gate, onnx=body, weights=("weight", "r"))
    found = quantized(network(), 8, target=target).export(tmp_path / "gate.onnx")
    assert found.parity.passed


def test_an_operator_is_reported(tmp_path: Path) -> None:
    qtool.register_operator(gate, onnx=Gate, weights=("weight", "r"))
    model = quantized(network(), 8)
    model.export(tmp_path / "gate.onnx")
    quick = qtool.ReportOptions(seconds=0.01)
    qtool.report(tmp_path / "gate.onnx", data(8), tmp_path / "report", quick, model=model.captured)
    assert "qtool_tests::gate" in (tmp_path / "report" / "report.html").read_text()


def _writes(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.mark.parametrize(
    ("operator", "options", "message"),
    [
        (_writes, {"onnx": Gate}, "is no torch operator"),
        (gate, {"onnx": Gate, "weights": ("w",)}, "no tensor 'w' .* it has: x, weight, r, bias"),
        (aten.add.Tensor, {"onnx": write_gate}, r"registered already \(add\)"),
    ],
)
def test_an_operator_that_does_not_fit(operator: Any, options: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message) as raised:
        qtool.register_operator(operator, **options)
    assert "\n" not in str(raised.value)


def _halves(statistic: MinMax, options: Any, qtype: Any, symmetric: bool) -> Any:
    low, high = statistic.extent()
    return low * options["share"], high * options["share"]


def test_an_observer() -> None:
    half = {"share": Option(0.5, 0.0, 1.0)}
    qtool.register_observer("part", statistic=MinMax, estimate=_halves, options=half)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    whole = quantized(model, 8, observer="minmax").parameters["input"].scale
    part = quantized(model, 8, observer="part:0.25").parameters["input"].scale
    assert float(part) == pytest.approx(float(whole) / 4)


MINE = replace(TARGETS["openvino"], name="mine", description="a runtime of mine")


def test_a_target() -> None:
    qtool.register_target(replace(MINE, kernels={"linear": KernelRule()}, no_kernel={}))
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 4))
    plan = quantized(model, 3, 8, target="mine").plan
    assert [(d.op, d.execution.value) for d in plan.nodes] == [
        *(("conv", "float"), ("relu", "float"), ("pass", "float")),
        ("linear", "integer"),
    ]


def _double_negation(module: fx.GraphModule) -> int:
    found = [
        n
        for n in G.calls(module.graph)
        if n.target is aten.neg.default and n.args[0].target is aten.neg.default
    ]
    for node in found:
        G.replace(node, node.args[0].args[0])
    return len(found)


class Negated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.neg(torch.neg(x)))


def test_a_pass_for_every_model() -> None:
    qtool.register_pass(GraphPass("double_negation", _double_negation), before="canonicalize")
    plan = quantized(Negated(), 8).plan
    assert [d.op for d in plan.nodes] == ["linear"]
    assert "double_negation" not in {r.name for r in plan.rewrites}


def test_a_pass_for_a_target() -> None:
    qtool.register_pass(
        GraphPass("double_negation", _double_negation, reason="nothing is done twice"),
        target="openvino",
    )
    assert [d.op for d in quantized(Negated(), 8).plan.nodes] == ["neg.default"] * 2 + ["linear"]
    plan = quantized(Negated(), 8, target="openvino").plan
    assert [d.op for d in plan.nodes] == ["linear"]
    assert (plan.rewrites[0].name, plan.rewrites[0].count) == ("double_negation", 1)
    assert plan.rewrites[0].reason == "nothing is done twice"


def test_a_pass_is_held_to_the_contract() -> None:
    def drop(module: fx.GraphModule) -> int:
        node = next(n for n in G.calls(module.graph) if n.target is aten.neg.default)
        G.replace(node, node.args[0])
        return 1

    qtool.register_pass(GraphPass("drop", drop))
    with pytest.raises(PassError, match="differs from the model"):
        quantized(Negated(), 8)


def test_a_pass_before_one_that_there_is_not() -> None:
    with pytest.raises(PassError, match="no pass 'yours' to run 'mine' before"):
        qtool.register_pass(GraphPass("mine", _double_negation), before="yours")
