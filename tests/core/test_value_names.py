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
