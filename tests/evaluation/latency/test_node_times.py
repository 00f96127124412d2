"""Times of nodes, by the names of the user's model. No test looks at how long anything takes."""

from collections import OrderedDict

import onnx
import pytest
from torch import nn

import qtool
from qtool.backends.model_file import OTHER, NodeKernel, median_of_ticks
from qtool.backends.onnx.storage import save
from qtool.backends.onnxruntime import node_times
from qtool.core.errors import VerificationError
from qtool.evaluation.latency.node_times import NodeTime, profile_nodes, sums_that_differ
from tests.evaluation.spoiled import images


@pytest.fixture(scope="module")
def nodes(chain_files):
    return profile_nodes(chain_files, [images(4).numpy()], runs=3)


def test_layers_are_named(nodes):
    found = {n.name: n for n in nodes}
    assert {"conv.0", "conv.1", "cat", "head"} <= set(found)
    assert found["conv.1"].kernels[1].startswith("QLinearConv")
    assert "Conv" in found["conv.1"].kernels[0]
    assert all(t > 0 for t in found["conv.1"].microseconds)


def test_clamps_and_roundings_count_to_their_layer(nodes):
    names = [n.name for n in nodes if n.name != OTHER]
    assert not [n for n in names if "relu" in n.lower() or n.endswith((".quantize", ".dequantize"))]
    order = [n for n in names if n.startswith("conv.")]
    assert order == sorted(order), "in the order of the network"


def test_a_file_alone(chain_files):
    (first, *_) = profile_nodes(chain_files[:1], [images(4).numpy()], runs=1)
    assert len(first.kernels) == len(first.microseconds) == 1


def test_inputs_that_do_not_fit(chain_files):
    with pytest.raises(VerificationError, match="fails on it"):
        profile_nodes(chain_files[:1], [images(4).numpy()[:, :2]], runs=1)


def test_a_time_is_the_median_over_runs(chain_files, monkeypatch):
    """In each run another node is descheduled for a second; two runs are slow as a whole."""
    measured = node_times._events

    def disturbed(*args):
        runs, graph = measured(*args)
        for number, run in enumerate(runs):
            for position, event in enumerate(run):
                slow = 1e6 * (position == number) + 1e5 * (number > 6)
                event["dur"] = 10 + position + slow
        return runs, graph

    monkeypatch.setattr(node_times, "_events", disturbed)
    nodes = profile_nodes(chain_files[:1], [images(4).numpy()], runs=9)
    assert all(10 <= n.microseconds[0] <= 200 for n in nodes)


def test_fractions_of_a_tick():
    assert median_of_ticks([3, 3, 3, 3]) == 3.0
    assert 2.9 < median_of_ticks([2, 3, 3, 4, 900]) < 3.5
    assert 0 < median_of_ticks([0, 0, 0, 1]) < median_of_ticks([0, 1, 1, 1]) < 1
    assert median_of_ticks([0, 0]) == 0.0


def test_sums_that_are_off_by_a_quarter():
    nodes = (NodeTime("a", ("Conv", "QLinearConv"), (203.0, 26504.0)),)
    assert sums_that_differ(nodes, ("float", "int8"), (0.2, 26.0)) == ""
    assert sums_that_differ(nodes, ("float", "int8"), (0.2, 5.24)) == (
        "the nodes of int8 sum to 26.5 ms, and a run takes 5.24 ms"
    )
    assert "float sum to 0.203 ms" in sums_that_differ(nodes, ("float", "int8"), (0.3, 26.0))


def test_nodes_of_one_operator_count_together(tmp_path):
    layers = {"conv": nn.Conv2d(3, 8, 3), "relu": nn.ReLU(), "up": nn.ConvTranspose2d(8, 4, 2, 2)}
    net = nn.Sequential(OrderedDict(layers)).eval()
    recipe = [{"select": "up", "as": "int8-weights"}]
    quantized = qtool.quantize(net, images().split(16), recipe=recipe, accuracy="fast")
    file = tmp_path / "up.onnx"
    save(quantized.to_onnx(), file)
    assert [n.op_type for n in onnx.load(file).graph.node].count("ConvTranspose") == 1
    found = {n.name: n for n in profile_nodes([file], [images(4).numpy()], runs=1)}
    assert "ConvTranspose" in found["up"].kernels[0]
    assert not [name for name in found if "/" in name]


def test_layers_that_one_file_computes_at_once_are_compared_at_once(monkeypatch):
    def table(**times: float) -> dict[str, NodeKernel]:
        return {name: NodeKernel("MatMul", spent) for name, spent in times.items()}

    class File:
        def __init__(self, table: dict[str, NodeKernel]) -> None:
            self.table = table

        def node_times(self, *args: object) -> dict[str, NodeKernel]:
            return self.table

        def node_names(self) -> list[str]:
            return list(self.table)

    tables = [table(**{"a.q+k": 7.0, "a.o": 2.0}), table(**{"a.q": 1.0, "a.k": 4.0, "a.o": 3.0})]
    monkeypatch.setattr("qtool.evaluation.latency.node_times.open_file", File)
    assert profile_nodes(tables, []) == (
        NodeTime("a.q+k", ("MatMul", "MatMul"), (7.0, 5.0)),
        NodeTime("a.o", ("MatMul", "MatMul"), (2.0, 3.0)),
    )
