"""Recurrent layers: one operator each; cells: linear layers, counted as such."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.frontends.torch.export_module import capture_module
from qtool.passes.recurrent import recurrent
from tests.named_cases import cases
from tests.passes.differential import Function, rewritten

SHAPE = (3, 6, 4)


@pytest.mark.parametrize("both", [False, True], ids=["forward", "both ways"])
@pytest.mark.parametrize("layers", [1, 2])
@cases(
    "kind, options",
    (nn.LSTM, {}),
    (nn.LSTM, {"bias": False, "batch_first": True}),
    (nn.GRU, {"batch_first": True}),
    (nn.GRU, {"bias": False}),
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
)
def test_every_result_is_that_of_torch(
    kind: type[nn.RNNBase], options: dict[str, Any], layers: int, both: bool
) -> None:
    layer = kind(4, 5, layers, bidirectional=both, **options)

    def results(x: torch.Tensor, layer: nn.Module) -> tuple[torch.Tensor, ...]:
        y, last = layer(x if layer.batch_first else x.transpose(0, 1))
        return (y, *last) if isinstance(last, tuple) else (y, last)

    found = rewritten(Function(results, layer), SHAPE, passes=[recurrent])
    name = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}[kind.__name__]
    assert found.ops().count(name) == layers
    assert found.counts == {"recurrent": 1}
    assert "zeros" not in found.ops()


def test_states_that_are_given() -> None:
    def run(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        state = x[:, :2].transpose(0, 1)
        return layer(x, (state, -state))[0]

    found = rewritten(Function(run, nn.LSTM(4, 4, 2, batch_first=True)), SHAPE, passes=[recurrent])
    assert found.ops().count("lstm") == 2


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_layer_reads_results_of_another_directly(batch_first: bool) -> None:
    def run(x: torch.Tensor, first: nn.Module, second: nn.Module) -> torch.Tensor:
        y, (h, _) = first(x if batch_first else x.transpose(0, 1))
        return second(y, h)[0]

    layers = (nn.LSTM(4, 4, batch_first=batch_first), nn.GRU(4, 4, batch_first=batch_first))
    found = rewritten(Function(run, *layers), SHAPE, passes=[recurrent])
    assert {"lstm", "gru"} <= set(found.ops())


def test_weights_stand_as_in_onnx() -> None:
    """Gates input, output, forget, cell: the rows of torch's third are last."""
    layer = nn.LSTM(1, 1, batch_first=True)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor([[0.0], [1.0], [2.0], [3.0]]))
    found = rewritten(Function(lambda x, r: r(x)[0], layer), (3, 2, 1), passes=[recurrent])
    weight = found.node("parts.0.weight")
    assert G.tensor(found.graph.module, weight).flatten().tolist() == [0, 3, 1, 2]


def test_projections_are_refused() -> None:
    model = Function(lambda x, r: r(x)[0], nn.LSTM(4, 8, proj_size=2)).eval()
    with pytest.raises(CaptureError, match=r"proj_size.*a linear layer behind the LSTM"):
        capture_module(model, Batch((torch.randn(SHAPE),), {}))


def test_dropout_between_layers_is_off_in_eval_mode() -> None:
    layer = nn.GRU(4, 4, 2, dropout=0.5, batch_first=True)
    assert rewritten(Function(lambda x, r: r(x)[0], layer), SHAPE).ops().count("gru") == 2


class Steps(nn.Module):
    """A cell in a loop."""

    def __init__(self, cell: nn.Module, pair: bool = False) -> None:
        super().__init__()
        self.cell, self.pair = cell, pair

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], 6) + 0.1
        for t in range(3):
            if self.pair:
                h, c = self.cell(x[:, t], (h, c))
            else:
                h = self.cell(x[:, t], h)
        return torch.cat([h, c], 1)


CELLS = [
    pytest.param(lambda bias: Steps(nn.LSTMCell(5, 6, bias), pair=True), id="lstm"),
    pytest.param(lambda bias: Steps(nn.GRUCell(5, 6, bias)), id="gru"),
    pytest.param(lambda bias: Steps(nn.RNNCell(5, 6, bias)), id="tanh"),
    pytest.param(lambda bias: Steps(nn.RNNCell(5, 6, bias, "relu")), id="relu"),
]


@pytest.mark.parametrize("make", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_two_linear_layers_a_step(make, bias: bool) -> None:  # type: ignore[no-untyped-def]
    found = rewritten(make(bias), (4, 3, 5))
    assert found.ops().count("linear") == 6
    assert not any("cell" in op for op in found.ops())


def test_their_weights_are_codes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Steps(nn.GRUCell(5, 6)).eval()
    found = qtool.quantize(model, [torch.randn(8, 3, 5) for _ in range(3)], accuracy="fast")
    result = found.export(tmp_path / "cell.onnx")
    assert result.coverage.share == 1.0
    assert result.coverage.macs == 3 * 3 * 6 * (5 + 6)
