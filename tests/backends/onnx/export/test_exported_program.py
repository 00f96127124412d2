"""A graph with attributes, lifted to an ExportedProgram, is the same function."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from qtool.backends.onnx.export.exported_program import SCOPE, to_program
from qtool.core import graph as G
from tests.backends.onnx.export.networks import NETWORKS, quantized, samples


@pytest.mark.parametrize("name", ["residual", "outputs", "two_inputs", "linear_3d"])
def test_the_program_computes_what_the_graph_does(name: str) -> None:
    found = quantized(name)
    program = to_program(found.qdq, found.graph)
    x = samples(name, 5)
    outputs = program.module(check_guards=False)(*x)
    for a, b in zip(pytree.tree_leaves(found.qdq(*x)), outputs, strict=True):
        assert torch.equal(a, b)
    assert len(outputs) == len(NETWORKS[name].outputs)


def test_attributes_are_lifted_by_kind_and_nodes_carry_their_names() -> None:
    found = quantized("conv_transpose")
    program = to_program(found.qdq, found.graph)
    signature = program.graph_signature
    assert set(signature.parameters) == {"up.bias"}
    kinds = {name: program.state_dict[name].dtype for name in signature.buffers}
    assert {torch.int8, torch.int32, torch.uint8} < set(kinds.values())
    assert list(signature.user_inputs) == ["x"]
    scopes = {
        G.name_of(n): n.meta["nn_module_stack"]
        for n in program.graph.nodes
        if n.op == "call_function"
    }
    assert scopes["up"] == {"up": ("up", SCOPE)}


def test_the_graph_itself_is_not_changed() -> None:
    found = quantized("residual")
    before = str(found.qdq.graph)
    to_program(found.qdq, found.graph)
    assert str(found.qdq.graph) == before
