"""LSTMs in mode "dynamic": integer products with the runtime's own operator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import qtool
from qtool.evaluation.restored_model import restore
from qtool.planning.plan import Execution

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
    quantized = qtool.quantize(captured, [x], mode="dynamic")
    found = quantized.export(path)
    assert found.passed
    assert found.exactness is not None
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
    quantized = qtool.quantize(model, [x], mode="dynamic")
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
