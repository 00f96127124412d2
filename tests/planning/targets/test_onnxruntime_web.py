"""The target for WebAssembly: what stays in float there, how weights lie, and the same codes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.backends.formats import open_model
from qtool.core import graph as G
from qtool.evaluation import speedup
from qtool.passes import canonicalize  # noqa: F401 - registers qtool's operators
from qtool.planning.targets import target
from tests.needs import needs_web
from tests.passes.differential import Function, rewritten

WEB = target("onnxruntime-web")


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        pytest.param(nn.Conv2d(48, 8, 1), None, id="48 terms"),
        pytest.param(nn.Conv2d(48, 8, 3, groups=8), None, id="groups"),
        pytest.param(nn.Conv2d(47, 8, 1), "fewer than 48 terms", id="47 terms"),
        pytest.param(nn.Conv2d(3, 8, 3), "fewer than 48 terms", id="first layer"),
        pytest.param(nn.Conv2d(48, 48, 7, groups=48), "for depthwise", id="depthwise"),
        pytest.param(nn.Conv2d(1, 8, 7), None, id="one channel, no groups"),
        pytest.param(
            Function(lambda x: F.conv2d(x, x[:1, :, :1, :1])), "at run time", id="computed weight"
        ),
    ],
)
def test_convolutions_that_gain_nothing_stay_in_float(layer: nn.Module, reason: str | None) -> None:
    width = layer.in_channels if isinstance(layer, nn.Conv2d) else 64
    graph = rewritten(layer, (1, width, 8, 8)).graph.graph
    (node,) = (n for n in G.calls(graph) if "conv" in str(n.target))
    found = WEB.kernels["conv"].refuse(node)
    assert found is None if reason is None else reason in str(found)


class Net(nn.Module):
    """Layers with many terms; rows of a transposed weight are another number than its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 8, 3)
        self.hidden, self.head = nn.Linear(8, 24), nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv(x)).flatten(2).transpose(1, 2)
        return self.head(F.relu(self.hidden(x)))


@pytest.fixture(scope="module")
def data() -> torch.Tensor:
    return torch.randn(16, 6, 7, 7, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def files(data: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(0)
    net, folder = Net().eval(), tmp_path_factory.mktemp("files")
    paths = {name: folder / f"{name}.onnx" for name in ("onnxruntime", WEB.name)}
    for name, path in paths.items():
        result = qtool.quantize(net, [data], target=name, accuracy="fast").export(path)
        assert result.coverage.share == 1.0
    return paths


def test_weights_are_stored_in_the_order_in_which_they_are_read(files: dict[str, Path]) -> None:
    orders = {}
    for name, path in files.items():
        graph = onnx.load(path).graph
        layers = [n for n in graph.node if n.op_type == "Gemm"]
        stored = {i.name: tuple(i.dims) for i in graph.initializer}
        transposed = {helper.get_node_attr_value(n, "transB") for n in layers}
        orders[name] = transposed, stored["hidden.weight.codes"]
    assert orders == {"onnxruntime": ({1}, (24, 8)), WEB.name: ({0}, (8, 24))}


def test_the_outputs_are_those_of_the_default_target(
    files: dict[str, Path], data: torch.Tensor
) -> None:
    ours, usual = (open_model(path).run([data.numpy()])[0] for path in files.values())
    np.testing.assert_array_equal(ours, usual)
    assert qtool.verify(files[WEB.name], [data]).passed


@needs_web
def test_the_outputs_in_webassembly_are_the_same(
    files: dict[str, Path], data: torch.Tensor
) -> None:
    path = files[WEB.name]
    native, web = (open_model(path, runtime=r).run([data.numpy()]) for r in ("onnxruntime", "node"))
    np.testing.assert_array_equal(web[0], native[0])


@needs_web
def test_the_speed_is_that_of_webassembly(data: torch.Tensor, tmp_path: Path) -> None:
    model = qtool.quantize(Net().eval(), [data], target=WEB.name, accuracy="fast")
    model.export(tmp_path / "model.onnx")
    found = model.speed(tmp_path / "model.onnx", seconds=0.01)
    assert found.runtime.startswith("onnxruntime-web in node, version ")
    assert found.rows()[0][1].endswith(found.runtime)


def test_no_speed_is_given_where_node_is_missing(
    files: dict[str, Path], data: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(speedup, "compare_speed", pytest.fail)
    model = qtool.quantize(Net().eval(), [data], target=WEB.name, accuracy="fast")
    assert model.speed(files[WEB.name], seconds=0.01) is None


def test_an_average_pool_between_integer_layers_stays_in_float() -> None:
    net = nn.Sequential(nn.Conv2d(6, 8, 3), nn.AvgPool2d(2), nn.Conv2d(8, 4, 3))
    captured = qtool.capture_model(net.eval(), torch.randn(2, 6, 11, 11))
    reasons = {d.node: d.reason for d in captured.plan(WEB.name).nodes}
    assert "average pool is slower" in reasons["1"]
    assert {"0": "integer", "2": "integer"}.items() <= {
        d.node: d.execution.value for d in captured.plan(WEB.name).nodes
    }.items()


class Tied(nn.Module):
    """A lookup in the weight of a layer, as in a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(300, 64), nn.Linear(64, 300, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.table(ids)))


def test_lookups_are_operators_of_every_build(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, ids = Tied().eval(), torch.randint(0, 300, (4, 12))
    outputs, operators = [], []
    for name in ("onnxruntime", WEB.name):
        path = tmp_path / f"{name}.onnx"
        quantized = qtool.quantize(
            model, [ids], target=name, mode="weight-only-int4", accuracy="fast"
        )
        quantized.export(path)
        operators.append({n.op_type for n in onnx.load(path).graph.node})
        outputs.append(open_model(path).run([ids.numpy()])[0])
        assert qtool.verify(path, [ids]).passed
    assert "GatherBlockQuantized" in operators[0]
    assert "GatherBlockQuantized" not in operators[1]
    np.testing.assert_array_equal(outputs[1], outputs[0])
