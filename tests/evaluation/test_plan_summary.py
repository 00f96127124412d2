"""Edges of concat and add, and the rows of the plan, as a report tells them."""

import pytest

from qtool.core.data import Batch
from qtool.evaluation.planned_layers import edge_facts, plan_rows
from qtool.evaluation.sensitivity import measure_sensitivity
from tests.evaluation.spoiled import chain, images


@pytest.fixture(scope="module")
def quantized():
    return chain()


def test_edges(quantized):
    seen = {
        e.tensor: e.activation for e in measure_sensitivity(quantized, [Batch((images(),))]).layers
    }
    found = edge_facts(quantized, seen)
    assert [(e.node, e.how) for e in found if e.op == "add"] == [
        ("add", "rescaled in the kernel"),
        ("add", "rescaled in the kernel"),
    ]
    joined = [e for e in found if e.op == "concat"]
    assert "copied" in [e.how for e in joined]
    for edge in joined:
        assert (edge.how == "copied") == (edge.input_scale == edge.output_scale)
        assert edge.lost_bits > -0.5
    for edge in found:
        assert all(name in quantized.plan for name in (edge.source, *edge.shared_with))


def test_plan_rows(quantized):
    rows = plan_rows(quantized)
    assert [row.node for row in rows] == [d.node for d in quantized.plan.nodes]
    inputs = {row.node: row.inputs for row in rows}
    nodes = [row.node for row in rows]
    assert inputs[nodes[0]] == ("x",)
    for number, row in enumerate(rows):
        assert set(row.inputs) <= {"x", *nodes[:number]}, "a node reads what was computed before"
    assert [row.macs for row in rows] == [d.macs for d in quantized.plan.nodes]
