"""The table of operators."""

from __future__ import annotations

import pytest
import torch

from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.graph import torch_ops
from qtool.core.ops import (
    OPS,
    Op,
    Role,
    data_inputs,
    kernel_of,
    register,
    register_writer,
    row_of,
    writers,
)
from qtool.core.ops.attention import grouped_attention, sequence_lengths
from qtool.core.ops.norms import skip_rms_norm
from qtool.core.ops.recurrent import dynamic_lstm
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


def test_an_operator_has_one_row_and_one_form() -> None:
    with pytest.raises(PlanError, match=r"aten.relu.default is registered already \(relu\)"):
        register(Op(key="mine", targets=(torch.ops.aten.relu.default,)))
    with pytest.raises(PlanError, match="registered already"):
        register_writer(torch.ops.aten.relu.default, lambda x: x)
    with pytest.raises(PlanError, match="registered already"):
        register_writer(torch_ops.idle, lambda x: x)
    with pytest.raises(PlanError, match=r"registered already \(written by qtool\)"):
        register(Op(key="mine", targets=(torch_ops.idle,)))
    with pytest.raises(PlanError, match="names no torch operator"):
        register(Op(key="mine", targets=()))


def test_forms_of_the_runtime_are_for_targets_that_take_them() -> None:
    own = writers(contrib=True).keys() - writers(contrib=False).keys()
    aten = torch.ops.aten
    stored = {torch_ops.linear_nbits, torch_ops.embedding_nbits, dynamic_lstm}
    stored |= {grouped_attention, sequence_lengths, skip_rms_norm}
    assert own == {aten.silu.default, aten.gelu.default, *stored}


def test_nodes_of_onnx_have_no_kernel_of_their_own() -> None:
    assert kernel_of("", "") is None
    assert kernel_of("", "Conv") is None
