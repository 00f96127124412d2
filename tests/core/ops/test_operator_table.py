"""The table of operators, and the MACs it counts."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import PlanError
from qtool.core.ops import OPS, Op, Role, data_inputs, macs, register, row_named, row_of, rows
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, run_passes
from qtool.planning.targets import TARGETS
from tests.passes.differential import Function
from tests.planning.planned import canonical, network_graph, network_plan

BY_HAND = {  # layer: outputs of one sample x products for each
    "residual": {
        "stem": 4 * 8 * 8 * (3 * 9),
        "conv1": 4 * 8 * 8 * (4 * 9),
        "conv2": 4 * 8 * 8 * (4 * 9),
        "head": 5 * 4,
    },
    "concat": {
        "stem": 4 * 36 * 3,
        "narrow": 2 * 36 * 4,
        "wide": 3 * 36 * 4 * 9,
        "last": 4 * 36 * 9,
    },
    "separable": {"0": 6 * 16 * 3 * 9, "3": 6 * 16 * 9, "6": 4 * 16 * 6},
    "transposed": {"0": 5 * 5 * 4 * 3 * 9, "3": 3 * 12 * 12 * 6},  # every input to 3 x 9 outputs
    "padded": {"1": 4 * (5 * 4) * 40, "7": 3 * 4},
    "signal": {"0": 4 * 12 * 2 * 5},
    "volume": {"0": 4 * 27 * 4 * 27},
    "linear_bn": {"0": 5 * 6, "3": 2 * 5},
    "mlp_3d": {"0": 7 * 5 * 6, "2": 7 * 2 * 5},
    "two_inputs": {"image_2": 4 * 16 * 3 * 9, "vector_2": 4 * 5},
}


@pytest.mark.parametrize("name", BY_HAND)
def test_networks(name: str) -> None:
    assert {d.node: d.macs for d in network_plan(name).nodes if d.macs} == BY_HAND[name]


@pytest.mark.parametrize("batch", [2, 7])
def test_the_captured_batch_does_not_matter(batch: int) -> None:
    graph = canonical(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (batch, 3, 6, 6))
    assert [macs(n, batch) for n in G.calls(graph)] == [4 * 16 * 27, 0]


@pytest.mark.parametrize(
    ("function", "count"),
    [
        pytest.param(lambda x: x @ x.transpose(1, 2), 4 * 4 * 5, id="matmul"),
        pytest.param(lambda x: torch.bmm(x.transpose(1, 2), x), 5 * 5 * 4, id="bmm"),
        pytest.param(
            lambda x: F.scaled_dot_product_attention(x, x[:, :3], torch.ones(2, 3, 6)),
            4 * 3 * 5 + 4 * 3 * 6,
            id="attention",
        ),
        pytest.param(lambda x: x @ torch.ones(5, 3), 4 * 3 * 5, id="by a matrix"),
        pytest.param(lambda x: x @ torch.ones(5), 4 * 5, id="by a vector"),
    ],
)
def test_products(function: object, count: int) -> None:
    graph = capture_module(Function(function).eval(), Batch((torch.ones(2, 4, 5),)))
    run_passes(graph.module, CANONICAL)
    assert sum(macs(n, 2) for n in G.calls(graph.graph)) == count


CELLS = {"LSTMCell": 4, "GRUCell": 3, "RNNCell": 1}


@pytest.mark.parametrize("kind", CELLS)
def test_steps_of_recurrent_layers(kind: str) -> None:
    cell = getattr(nn, kind)(5, 6)
    state = torch.zeros(2, 6)
    given = (torch.ones(2, 5), (state, state) if kind == "LSTMCell" else state)
    graph = capture_module(cell.eval(), Batch(given))
    run_passes(graph.module, CANONICAL)
    assert sum(macs(n, 2) for n in G.calls(graph.graph)) == CELLS[kind] * 6 * (5 + 6)


def test_rows_that_compute_have_a_kernel_or_a_reason_on_some_target() -> None:
    known = {k for t in TARGETS.values() for k in (*t.kernels, *t.no_kernel, *t.weight_only)}
    assert {row.key for row in OPS.values() if row.role is not Role.CLIP} <= known


@pytest.mark.parametrize("target", OPS, ids=str)
def test_positions_fit_the_operator(target: torch._ops.OpOverload) -> None:
    row, arguments = OPS[target], target._schema.arguments
    for index in row.inputs:
        assert "Tensor" in str(arguments[index].type)
    if row.weight is not None:
        assert arguments[row.weight].name in ("weight", "w")
    if row.bias is not None:
        assert arguments[row.bias].name == "bias"


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
FURTHER: dict[str, tuple[Any, ...]] = {
    "average_pool": ([2], [2], [0], False, True, None),
    "max_pool": ([3], [1], [1], [1], False),
    "add": (X.flip(0),),
    "clip": (-0.5, 0.75),
    "prelu": (torch.tensor([0.1, 0.2, -0.3, 0.0]),),
    "rescale": (3.0,),
}
"""Arguments after the first one."""


@pytest.mark.parametrize("key", [row.key for row in rows() if row.homogeneous])
def test_a_factor_of_a_channel_passes_through_a_homogeneous_operator(key: str) -> None:
    row, further = row_named(key), FURTHER.get(key, ())
    x, factors = X, torch.tensor([0.5, 1.0, 2.0, 4.0])
    if row.spatial:
        x, factors = X.t().reshape(1, 4, 6), factors.reshape(1, 4, 1)
    (operator, *_) = row.targets
    assert torch.equal(operator(x * factors, *further), operator(x, *further) * factors)


@pytest.mark.parametrize("key", [row.key for row in rows() if row.flat])
def test_a_flat_operator_computes_the_same_in_any_shape(key: str) -> None:
    (operator, *_), further = row_named(key).targets, FURTHER.get(key, ())
    deep = X.reshape(2, 3, 4)
    assert torch.equal(operator(deep, *further).reshape(6, 4), operator(X, *further))


@pytest.mark.parametrize("key", [row.key for row in rows() if row.in_place is not None])
def test_an_operator_in_place_has_the_same_values(key: str) -> None:
    row, x, further = row_named(key), X.clone(), FURTHER.get(key, ())
    expected = row.targets[0](X, *further)
    assert row.in_place(x, *further) is x
    assert torch.equal(x, expected)


def test_data_inputs() -> None:
    inputs = {
        G.name_of(n): [G.name_of(i) for i in data_inputs(n)]
        for n in G.calls(network_graph("concat"))
    }
    assert inputs["cat"] == ["relu_2", "wide", "relu"]
    assert inputs["wide"] == ["relu"]


def test_row_of_what_has_none() -> None:
    graph = network_graph("concat")
    assert [row_of(n) for n in graph.nodes if n.op != "call_function"].count(None) == (
        len(graph.nodes) - len(list(G.calls(graph)))
    )


def test_an_operator_has_one_row() -> None:
    with pytest.raises(PlanError, match=r"aten.relu.default is registered already \(relu\)"):
        register(Op(key="mine", targets=(torch.ops.aten.relu.default,)))
    with pytest.raises(PlanError, match="names no torch operator"):
        register(Op(key="mine", targets=()))
