"""Decoders and sequences of linear layers."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.ops.attention import grouped_attention, rotary_embedding
from qtool.core.ops.fused import skip_rms_norm
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import FOR_FILES, run_passes
from qtool.passes.flatten_linear import flatten_linear
from tests.named_cases import named_cases
from tests.passes.differential import CANONICAL, Function, assert_same, rewritten
from tests.passes.small_decoder import HEAD, POSITIONS, fused

ROTARY = ("rotary", "rotary_attention")
aten = torch.ops.aten


def test_the_table_has_the_angles_of_all_positions() -> None:
    module, counts = fused(*ROTARY)
    assert counts == {"rotary": 2, "rotary_attention": 1}
    (node,) = (n for n in G.calls(module.graph) if n.target is grouped_attention)
    for table in node.args[7:9]:
        assert table.op == "get_attr"
        assert tuple(G.shape(table)) == (POSITIONS, HEAD // 2)
    names = {str(n.target) for n in G.calls(module.graph)}
    assert not {"aten.cos.default", "aten.transpose.int", "qtool.rotary.default"} & names


@pytest.mark.parametrize("kind", ["far", "narrow"])
def test_other_rotations_stay_operators(kind: str) -> None:
    module, _ = fused(*ROTARY, kind=kind)
    (node,) = (n for n in G.calls(module.graph) if n.target is grouped_attention)
    assert node.args[7] is None
    rotations = [n for n in G.calls(module.graph) if n.target is rotary_embedding]
    assert len(rotations) == 2


@pytest.mark.parametrize(("kind", "layers"), [("", 4), ("bias", 5)])
def test_layers_of_one_form_are_one_layer(kind: str, layers: int) -> None:
    module, counts = fused(*ROTARY, "packed_projections", kind=kind)
    assert counts["packed_projections"] == 2  # attention, and gate and up
    linear = [G.name_of(n) for n in G.calls(module.graph) if n.target is aten.linear.default]
    assert len(linear) == layers
    assert "projections.q+k" + "+v" * (not kind) in linear
    assert "gate+up" in linear
    (node,) = (n for n in G.calls(module.graph) if n.target is grouped_attention)
    assert (node.args[1] is None) == (not kind)  # packed, or three tensors


def test_layers_outside_of_a_decoder_stay() -> None:
    def both(x: torch.Tensor, a: torch.nn.Module, b: torch.nn.Module) -> torch.Tensor:
        return torch.sigmoid(a(x)) * b(x)

    net = Function(both, *(torch.nn.Linear(4, 4) for _ in range(2)))
    found = rewritten(net, (3, 4), passes=[FOR_FILES["packed_projections"]])
    assert found.counts["packed_projections"] == 0


def test_a_chain_of_sums() -> None:
    module, counts = fused("skip_rms_norm")
    assert counts == {"skip_rms_norm": 2}
    targets = [n.target for n in G.calls(module.graph)]
    assert targets.count(skip_rms_norm) == 2
    assert aten.rms_norm.default not in targets
    sums = [n for n in G.calls(module.graph) if n.target is aten.add.Tensor]
    assert not [n for n in sums if G.rank(n) == 3]


STEPS = (2, 5, 6)
Parts = Callable[[torch.Tensor, nn.Module], list[torch.Tensor]]


def count(parts: Parts, axis: int = 1) -> int:
    model = Function(lambda x, layer: torch.cat(parts(x, layer), axis), nn.Linear(6, 4))
    return rewritten(model, STEPS, passes=CANONICAL).counts["unrolled_steps"]


def test_the_steps_are_one_layer() -> None:
    def unrolled(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        return torch.stack([F.relu(layer(x[:, t])) for t in range(5)], 1)

    result = rewritten(Function(unrolled, nn.Linear(6, 4)), STEPS, passes=CANONICAL)
    assert result.counts["unrolled_steps"] == 1
    assert result.ops().count("linear") == 1
    assert "cat" not in result.ops()


def test_slices_with_a_product_and_a_sum_as_files_have_them() -> None:
    def unrolled(x: torch.Tensor) -> torch.Tensor:
        x = x.permute(1, 0, 2)
        rows = [x[t : t + 1].squeeze(0) @ weight + bias for t in range(5)]
        return torch.cat([row.unsqueeze(0) for row in rows])

    weight, bias = torch.randn(6, 4), torch.randn(4)
    result = rewritten(Function(unrolled), STEPS, passes=CANONICAL)
    assert result.counts["unrolled_steps"] == 1
    assert result.ops().count("linear") == 1


@named_cases(
    "parts",
    ("order", lambda x, layer: [layer(x[:, t]).unsqueeze(1) for t in (0, 1, 2, 4, 3)]),
    ("not all", lambda x, layer: [layer(x[:, t]).unsqueeze(1) for t in range(4)]),
    (
        "different factors",
        lambda x, layer: [(layer(x[:, t]) * (t + 1)).unsqueeze(1) for t in range(5)],
    ),
    (
        "rows that depend on each other",
        lambda x, layer: [F.softmax(layer(x[:, t]), 0).unsqueeze(1) for t in range(5)],
    ),
)
def test_what_is_not_one_layer(parts: Parts) -> None:
    assert count(parts) == 0


@named_cases(
    "shape, count", ("vectors", (2, 5), 0), ("sequences", (2, 7, 5), 1), ("maps", (2, 3, 4, 5), 1)
)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_ranks(shape: tuple[int, ...], count: int, bias: bool) -> None:
    result = rewritten(nn.Linear(5, 3, bias=bias), shape, passes=[flatten_linear])
    assert result.counts == {"flatten_linear": count}
    linears = [n for n in G.calls(result.graph.graph) if "linear" in str(n.target)]
    assert [G.rank(n) for n in linears] == [2]


def test_names_tell_the_layer() -> None:
    result = rewritten(
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)),
        (2, 7, 5),
        passes=[flatten_linear],
    )
    names = [G.name_of(n) for n in G.calls(result.graph.graph)]
    assert names == ["0.flatten", "0", "1", "2", "2.unflatten"]  # reshapes that meet are joined


def test_a_dynamic_length() -> None:
    model = nn.Linear(5, 3).eval()
    graph = capture_module(
        model, Batch((torch.randn(2, 7, 5),)), {"input": {0: "batch", 1: "time"}}
    )
    assert run_passes(graph.module, [flatten_linear]) == {"flatten_linear": 1}
    for batch, time in ((2, 7), (3, 11), (1, 1)):
        assert_same(model, graph.module, (torch.randn(batch, time, 5),))
