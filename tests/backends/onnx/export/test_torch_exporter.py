"""torch's exporter, and recurrent layers with dynamic ranges."""

import operator
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.onnx._internal.exporter import _core

import qtool
from qtool.backends.onnx.export import float_onnx
from qtool.backends.onnx.export import torch_exporter as module
from qtool.evaluation.restored_model import restore
from qtool.frontends.captured_model import capture_model
from qtool.planning.plan import Execution
from tests.backends.onnx.export.networks import run


class Computes(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


PROMOTES = {
    "float and bool": lambda x: x + (x > 0),
    "float and integer": lambda x: x * torch.arange(3),
    "integer and a fraction": lambda x: (x > 0).long() * 0.5,
    "an integer quotient": lambda x: (x > 0).long() / 2,
    "compared with a fraction": lambda x: (x * 2).long() > 0.5,
}
AS_IT_IS = {
    "both conditions": lambda x: torch.where((x > 0) & (x < 1), x, 0.0),
    "one or the other": lambda x: torch.where((x > 1) | (x < 0), x, 0.0),
    "a cast": lambda x: (x > 0).to(torch.float32) * x,
    "dimensions of size 1, and one that is not": lambda x: x[None, :, None].squeeze((0, 2, 3)),
    "less than a number": lambda x: 1 - x,
    "a look-up": lambda x: x[torch.tensor([1, 0])],
}


def written(function: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Writes the function, and gives the largest difference in the runtime."""
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    graph = capture_model(Computes(function).eval(), x).graph
    (found,) = run(float_onnx(graph), (x,), optimise=False)
    return float(np.abs(found.astype(np.float64) - function(x).double().numpy()).max())


@pytest.mark.parametrize("name", PROMOTES)
def test_types_are_promoted_as_torch_does(name: str) -> None:
    assert written(PROMOTES[name]) == 0


@pytest.mark.parametrize("name", AS_IT_IS)
def test_most_graphs_are_not_traced_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: pytest.fail("traced again"))
    monkeypatch.setattr(
        "torch.onnx._internal.exporter._fx_passes.insert_type_promotion_nodes",
        lambda _: pytest.fail("types promoted"),
    )
    assert written(AS_IT_IS[name]) == 0


def test_hard_swish_in_integers_is_not_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Hardswish(), nn.Conv2d(4, 2, 1)).eval()
    quantized = qtool.quantize(model, [torch.randn(32, 2, 4, 4)], accuracy="fast")
    monkeypatch.setattr(module, "_translate_all", lambda *_: pytest.fail("traced again"))
    assert "Clip" in {n.op_type for n in quantized.to_onnx().graph.node}


def test_what_has_no_translation_goes_the_whole_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    whole = _core.export
    monkeypatch.setattr(_core, "export", lambda *a, **k: asked.append(a) or whole(*a, **k))
    module._registry.cache_clear()
    for _ in range(2):
        assert written(torch.special.ndtr) < 1e-6
    assert len(asked) == 2
    assert module._registry.cache_info().misses == 2  # few operators, and once the whole library


def test_without_the_parts_of_torch_it_still_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_registry", lambda *_: None)
    assert written(AS_IT_IS["both conditions"]) == 0


def _code(function: Any) -> object:
    if hasattr(function, "to_function_proto"):
        return function.to_function_proto().SerializeToString()
    return function.name, function.func.__code__


def test_one_function_of_the_library_is_parsed_for_one_operator() -> None:
    program = """
import sys
from collections import Counter
import torch
from onnxscript import values
from qtool.backends.onnx.export import torch_exporter
parsed = Counter()
init = values.TracedOnnxFunction.__init__
def count(self, *args): parsed["traced"] += 1; init(self, *args)
values.TracedOnnxFunction.__init__ = count
few = torch_exporter._registry(21, (), frozenset({torch.ops.aten.add.Tensor}))
assert few.is_registered(torch.ops.aten.add.Tensor) and parsed["traced"] < 50, parsed  # of 450
assert "onnxscript.function_libs.torch_lib.ops.core" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_translations_of_few_operators_are_those_of_the_whole_library() -> None:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    aten = torch.ops.aten
    wanted = frozenset({aten.relu.default, aten.add.Tensor, aten.special_erf.default, operator.mul})
    few, whole = module._registry(21, (), wanted), ONNXRegistry.from_torchlib(opset_version=21)
    for target in wanted:
        found = [[_code(d.onnx_function) for d in r.get_decomps(target)] for r in (few, whole)]
        assert found[0] == found[1] != []
    for other in (aten.sigmoid.default, operator.pow):  # whose source was not read
        assert not few.is_registered(other)
    assert len(whole.functions) > 400  # nor is it lost to others


LAYERS = {"one": {"num_layers": 1}, "two, both ways": {"num_layers": 2, "bidirectional": True}}


class Net(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.cell = nn.LSTM(24, 32, batch_first=True, **options)
        self.gates = nn.GRU(24, 8, batch_first=True)
        self.head = nn.Linear(64 if self.cell.bidirectional else 32, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.head(self.cell(x)[0]), self.gates(x)[0]


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS.keys())
def test_it_is_written_proven_and_read_back(options: dict[str, object], tmp_path: Path) -> None:
    model, path = Net(**options).eval(), tmp_path / "model.onnx"
    x = torch.randn(7, 6, 24)
    captured = qtool.capture_model(model, x)
    quantized = qtool.quantize(captured, [x], mode="dynamic", accuracy="fast")
    found = quantized.export(path)
    assert found.passed
    assert found.exactness.exact
    assert found.fidelity.worst > 25
    kernels = [n.op_type for n in onnx.load(path).graph.node]
    assert kernels.count("DynamicQuantizeLSTM") == options["num_layers"]
    assert kernels.count("GRU") == 1
    cells = [d for d in quantized.plan.nodes if d.op == "lstm"]
    assert {d.execution for d in cells} == {Execution.DYNAMIC}
    assert {d.reason for d in cells} == {"its inputs are quantized in each time step"}
    rows = {r.name: r for r in found.coverage.rows}
    assert all(rows[d.node].integer and rows[d.node].macs == d.macs for d in cells)
    again = restore(path, captured, qtool.core.data.Batch((x,)))
    with torch.no_grad():
        assert torch.equal(again(x)[0], quantized(x)[0])


def test_a_wrong_weight_is_seen(tmp_path: Path) -> None:
    model, path = Net(num_layers=1).eval(), tmp_path / "model.onnx"
    x = torch.randn(7, 6, 24)
    quantized = qtool.quantize(model, [x], mode="dynamic", accuracy="fast")
    file = quantized.to_onnx()
    (codes,) = (i for i in file.graph.initializer if i.name == "cell.recurrent.codes")
    turned = np.ascontiguousarray(numpy_helper.to_array(codes)[:, ::-1])
    codes.CopyFrom(numpy_helper.from_array(turned, codes.name))
    onnx.save(file, path)
    assert not quantized.verify(path).passed


def test_other_modes_store_it_alone() -> None:
    plan = qtool.capture_model(Net().eval(), torch.randn(7, 6, 24)).plan()
    found = {d.node: d for d in plan.nodes}
    assert found["cell"].execution is Execution.WEIGHTS
