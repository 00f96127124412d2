"""Names in a file: what is written is what is read."""

from __future__ import annotations

import pytest

from qtool.core import value_names
from tests.backends.onnx.export.networks import NETWORKS, model, quantized


def test_what_is_written_is_what_is_read() -> None:
    assert (
        value_names.operator_of(value_names.helper("layer1.0.add", "Cast", "val_3"), "Cast")
        == "layer1.0.add"
    )
    assert value_names.operator_of("layer1.0.add", "Add") == "layer1.0.add"
    assert value_names.tensor_of(value_names.quantize("conv")) == "conv"
    assert value_names.tensor_of("conv") == "conv"
    assert value_names.base_of(value_names.quantize("conv")) == "conv"
    assert value_names.base_of(value_names.dequantize("conv.weight")) == "conv.weight"
    assert value_names.base_of("conv_output_QuantizeLinear") == "conv_output"
    assert value_names.base_of("conv") is None


@pytest.mark.parametrize("name", ["residual", "conv_transpose", "outputs"])
def test_files_are_named_so(name: str) -> None:
    file, plan = model(name), quantized(name).plan
    nodes = {n.name: n for n in file.graph.node}
    stored = {i.name for i in file.graph.initializer}
    for point in plan:
        root = plan.root(point.name)
        assert value_names.dequantize(point.name) in nodes or root != point.name
        if point.kind == "weight":
            assert {value_names.codes(point.name), value_names.scale(point.name)} <= stored
            assert nodes[value_names.dequantize(point.name)].input[0] == value_names.codes(
                point.name
            )
    assert name in NETWORKS


@pytest.mark.parametrize(
    "layers", [("a.q", "a.k", "a.v"), ("gate", "up"), ("a.b.q", "a.c.k"), ("a.q", "k")]
)
def test_a_joint_layer_is_named_after_its_layers(layers: tuple[str, ...]) -> None:
    points = [f"{name}.weight" for name in layers]
    joint = f"{value_names.joint_layer(layers)}.weight"
    assert value_names.points_of_joint(joint, points) == points
    assert value_names.points_of_joint(joint, points[1:]) == []
    assert value_names.points_of_joint(points[0], points) == []


def test_codes_have_the_name_of_their_point() -> None:
    assert value_names.point_of_codes(value_names.codes("a.weight")) == "a.weight"
    assert value_names.point_of_codes("a.weight") is None
