"""The QDQ graph in torch says what the file says, code for code."""

import pytest
import torch
from torch.utils import _pytree as pytree

from qtool.backends.onnx.export import lower_to_qdq
from qtool.core.graph import torch_ops
from qtool.planning.fake_quantize import quant_points
from qtool.planning.plan import Execution, Kind
from qtool.planning.targets import target
from tests.backends.onnx.export.networks import (
    NETWORKS,
    codes_apart,
    model,
    quantized,
    run,
    samples,
)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_computes_what_the_file_does_as_written(name: str) -> None:
    found = quantized(name)
    points = len(quant_points(found.module))
    module = lower_to_qdq(found.module, found.plan, target(found.plan.target))
    assert not quant_points(module)
    assert len(quant_points(found.module)) == points  # the source is untouched
    x = samples(name, 5)
    with torch.no_grad():
        outputs = [t.numpy() for t in pytree.tree_leaves(module(*x))]
    file = run(model(name), x, optimise=False)
    assert (
        codes_apart(outputs, file, list(found._simulation.output_scales())) <= 1.001
    )  # order of float sums


def test_points_that_share_parameters_share_their_constants() -> None:
    module = quantized("max_pool").qdq
    kinds = (torch_ops.quantize, torch_ops.dequantize)
    scales = {
        str(n.args[1].target)
        for n in module.graph.nodes
        if n.target in kinds and n.args[0].op != "get_attr"
    }
    points = [p.name for p in quantized("max_pool").plan if p.kind is Kind.ACTIVATION]
    assert len(points) == 4  # x, relu, the pool and last, of which the pool has those of relu
    assert len(scales) == 3


def test_only_a_pad_with_zeros_stands_on_codes() -> None:
    """Another fill may lie outside the range of what is padded, whose codes cannot hold it."""
    found = quantized("pad_with_ones")
    assert not [n for n in found.qdq.graph.nodes if n.target is torch_ops.pad_codes]
    decision = found.plan.decision("pad")
    assert (decision.execution, decision.reason) == (
        Execution.FLOAT,
        "it pads with a value other than zero",
    )
