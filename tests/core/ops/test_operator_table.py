"""The table of operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.ops import OPS, Op, Role, data_inputs, register, row_named, row_of, rows
from qtool.planning.targets import TARGETS
from tests.planning.planned import network_graph


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
