"""Float forms: norms by hand, activations by hand."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

from qtool.backends.onnx.export import write_float
from qtool.backends.onnxruntime.session import optimised_graph
from qtool.core import graph as G
from qtool.passes import CANONICAL, FOR_FILES, FOR_TARGETS
from qtool.planning.recipe import Recipe, Rule
from tests.named_cases import cases
from tests.passes.differential import Function, assert_near, op, rewritten, written

SHAPE = (2, 5, 8)
PARTS = {"rms_norm", "pow", "mean", "add", "sqrt", "rsqrt", "reciprocal", "div", "mul"}


def _mean(x: Tensor, *axes: int) -> Tensor:
    return x.pow(2).mean(axes or (-1,), keepdim=True) + 1e-5


def _weight() -> nn.Module:
    made = nn.RMSNorm(SHAPE[-1])
    nn.init.uniform_(made.weight, 0.5, 2)
    return made


FORMS = {
    "rsqrt": lambda x, n: n.weight * (x * torch.rsqrt(_mean(x))),
    "the other way round": lambda x, n: (torch.rsqrt(_mean(x)) * x) * n.weight,
    "divided": lambda x, n: x / torch.sqrt(_mean(x)) * n.weight,
    "reciprocal": lambda x, n: x * torch.sqrt(_mean(x)).reciprocal() * n.weight,
    "a product": lambda x, n: n.weight * (x * (1e-5 + (x * x).mean(2, True)).rsqrt()),
    "one and a weight": lambda x, n: (1.0 + n.weight) * (x * torch.rsqrt(_mean(x))),
}
OTHERS = {
    "without a weight": lambda x, _: x * torch.rsqrt(_mean(x)),
    "other axes": lambda x, n: n.weight * (x * torch.rsqrt(_mean(x, 1, 2))),
    "of something else": lambda x, n: n.weight * (x * torch.rsqrt(_mean(x + 1))),
    "one weight for all": lambda x, n: n.weight[:1] * (x * torch.rsqrt(_mean(x))),
}


@pytest.mark.parametrize("form", FORMS)
def test_it_is_one_operator(form: str) -> None:
    found = rewritten(Function(FORMS[form], _weight()), SHAPE)
    assert [o for o in found.ops() if o in PARTS] == ["rms_norm"]


@pytest.mark.parametrize("form", OTHERS)
def test_other_forms_stay(form: str) -> None:
    found = rewritten(Function(OTHERS[form], _weight()), SHAPE)
    assert "rms_norm" not in found.ops()


def test_what_another_node_reads_is_computed_once() -> None:
    def both(x: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
        normal = x * torch.rsqrt(_mean(x))
        return norm.weight * normal, normal

    assert "rms_norm" not in rewritten(Function(both, _weight()), SHAPE).ops()


def test_it_is_one_kernel_of_the_runtime(tmp_path: Path) -> None:
    found = rewritten(Function(FORMS["rsqrt"], _weight()), SHAPE)
    assert [op(n) for n in G.calls(found.graph.graph)] == ["rms_norm"]
    file = write_float(found.graph, tmp_path / "float.onnx")
    assert [n.op_type for n in optimised_graph(file).graph.node] == ["SimplifiedLayerNormalization"]


BACK = [*CANONICAL, FOR_FILES["unpad_channels"]]
IMAGE = (2, 3, 8, 8)


def test_the_float_graph_is_as_before() -> None:
    passes = [*CANONICAL, FOR_TARGETS["pad_channels"], FOR_FILES["unpad_channels"]]
    result = rewritten(nn.Conv2d(3, 16, 3), IMAGE, passes=passes)
    assert (result.counts["pad_channels"], result.counts["unpad_channels"]) == (1, 1)
    assert result.ops() == ["conv"]


@cases(
    "widths, fill, groups, count",
    ([0, 0, 0, 0, 0, 3], 0.0, 1, 1),
    ([0, 0, 0, 0, 1, 2], 0.0, 1, 0),
    ([0, 0, 0, 0, 0, 3], 1.0, 1, 0),
    ([1, 1, 0, 0, 0, 3], 0.0, 1, 0),
    ([0, 0, 0, 0, 0, 3], 0.0, 2, 0),
)
def test_only_channels_of_zeros_behind_the_others_are_taken_away(
    widths: list[int], fill: float, groups: int, count: int
) -> None:
    layer = nn.Conv2d(6, 8, 3, groups=groups)
    model = Function(lambda x, conv: conv(F.pad(x, widths, value=fill)), layer)
    assert rewritten(model, IMAGE, passes=BACK).counts["unpad_channels"] == count


@pytest.mark.parametrize("scheme", ["float", "int8-weights", "static"])
def test_the_file_has_the_fourth_channel_in_integers_alone(scheme: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 1)).eval()
    batch = torch.randn(8, 3, 12, 12)
    recipe = [{"select": "0", "as": scheme}]
    file = written(model, batch, recipe, tmp_path / "m.onnx")
    graph = onnx.load(file.path).graph
    widths = {numpy_helper.to_array(i).shape for i in graph.initializer}
    assert ((16, 4, 3, 3) in widths, (16, 3, 3, 3) in widths) == (
        scheme == "static",
        scheme != "static",
    )
    assert ("Pad" in {n.op_type for n in graph.node}) == (scheme == "static")
    assert_near(file.path, model, batch)


PRELU = [*CANONICAL, FOR_FILES["prelu_forms"]]
LARGE, SMALL = (2, 8, 24, 24), (2, 8, 4, 4)


def prelu(most: float, count: int = 8) -> nn.PReLU:
    layer = nn.PReLU(count)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-0.5, most, count))
    return layer


@pytest.mark.parametrize("count", [1, 8])
def test_slopes_up_to_one_make_a_maximum(count: int) -> None:
    result = rewritten(prelu(1.0, count), LARGE, passes=PRELU)
    assert result.ops() == ["mul", "maximum"]


def test_steeper_ones_add_what_is_below_zero() -> None:
    assert rewritten(prelu(1.5), LARGE, passes=PRELU).ops() == ["clamp", "mul", "add"]


def test_a_small_tensor_keeps_its_one_call() -> None:
    assert rewritten(prelu(1.0), SMALL, passes=PRELU).ops() == ["prelu"]


@pytest.mark.parametrize("most", [0.5, 1.5])
@pytest.mark.parametrize("scheme", ["static", "int8-weights"])
def test_a_file_without_prelu_computes_the_same(scheme: str, most: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), prelu(most), nn.Conv2d(8, 8, 3)).eval()
    batch = torch.randn(8, 3, 32, 32)
    recipe = [{"select": "0", "as": scheme}]
    file = written(model, batch, recipe, tmp_path / "m.onnx")
    assert "1 prelu" in dict(file.summary().rows)["float"]
    assert "PRelu" not in {n.op_type for n in onnx.load(file.path).graph.node}
    assert_near(file.path, model, batch)


PASSES = [*CANONICAL, FOR_TARGETS["hard_swish"], FOR_FILES["hard_swish_forms"]]
HARD_SWISH_IMAGE = (2, 4, 6, 6)
Step = Callable[[torch.Tensor], torch.Tensor]


@cases(
    "steps",
    lambda y: y * F.relu6(y + 3) / 6,
    lambda y: F.relu6(3 + y) * y * (1 / 6),
    lambda y: y * (F.relu6(y + 3.0) / 6.0),
    lambda y: y * (y / 6 + 0.5).clamp(0, 1),
    lambda y: y * F.hardtanh(0.5 + y * torch.tensor([1 / 6]), 0.0, 1.0),
    lambda y: y * F.hardsigmoid(y),
)
def test_spellings_of_hard_swish(steps: Step) -> None:
    model = Function(lambda x, layer: steps(layer(x)), nn.Conv2d(4, 4, 1))
    result = rewritten(model, HARD_SWISH_IMAGE, passes=CANONICAL)
    assert result.ops() == ["conv", "hardswish"]


def test_the_spelling_of_hard_sigmoid() -> None:
    model = Function(lambda x, layer: F.relu6(layer(x) + 3) / 6, nn.Conv2d(4, 4, 1))
    assert rewritten(model, HARD_SWISH_IMAGE, passes=CANONICAL).ops() == ["conv", "hardsigmoid"]


@cases(
    "steps",
    lambda y: y * F.relu6(y + 2) / 6,
    lambda y: y * F.relu6(y + 3) / 5,
    lambda y: (2 * y) * F.relu6(y + 3) / 6,
    lambda y: 6 / (1 + F.relu6(y + 3)),
)
def test_what_is_no_hard_swish(steps: Step) -> None:
    model = Function(lambda x, layer: steps(layer(x)), nn.Conv2d(4, 4, 1))
    assert rewritten(model, HARD_SWISH_IMAGE, passes=CANONICAL).counts["hard_swish_forms"] == 0


def test_a_gate_of_another_slope_has_a_form_in_integers() -> None:
    def gate(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        return x * (0.2 * layer(x) + 0.4).clamp(0, 1)

    passes = [*CANONICAL, FOR_TARGETS["hard_swish"]]
    result = rewritten(Function(gate, nn.Conv2d(4, 4, 1)), HARD_SWISH_IMAGE, passes=passes)
    assert result.ops() == ["conv", "rescale", "add", "clamp", "mul"]
    outside = rewritten(
        Function(lambda x: (0.2 * x + 0.4).clamp(0, 1)), HARD_SWISH_IMAGE, passes=passes
    )
    assert outside.counts["hard_swish"] == 0


@pytest.mark.parametrize(
    ("activation", "operator"), [(nn.Hardswish(), "hardswish"), (nn.Hardsigmoid(), "hardsigmoid")]
)
def test_the_steps_are_one_operator_again(activation: nn.Module, operator: str) -> None:
    result = rewritten(
        nn.Sequential(nn.Conv2d(4, 4, 1), activation), HARD_SWISH_IMAGE, passes=PASSES
    )
    assert result.ops() == ["conv", operator]


def test_a_gate_with_two_readers_stays_a_gate() -> None:
    def twice(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        y = layer(x)
        gate = F.hardsigmoid(y)
        return y * gate + gate

    result = rewritten(Function(twice, nn.Conv2d(4, 4, 1)), HARD_SWISH_IMAGE, passes=PASSES)
    assert result.ops() == ["conv", "hardsigmoid", "mul", "add"]


@cases(
    "steps",
    lambda y: (y / 6 + 0.25).clamp(0, 1),
    lambda y: (y / 6 + 0.5).clamp(0, 2),
    lambda y: (y / 5 + 0.5).clamp(0, 1),
)
def test_other_steps_stay(steps: Step) -> None:
    model = Function(lambda x, layer: steps(layer(x)), nn.Conv2d(4, 4, 1))
    assert rewritten(model, HARD_SWISH_IMAGE, passes=PASSES).counts["hard_swish_forms"] == 0


def test_the_runtime_computes_it_with_the_float_convolution(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.Hardswish(), nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish()
    model = nn.Sequential(*layers, nn.Conv2d(8, 16, 1)).eval()
    recipe = Recipe(rules=(Rule(select="[02]", scheme="float"),))
    batch = torch.randn(8, 3, 12, 12)
    file = written(model, batch, recipe, tmp_path / "a.onnx")
    kinds = [n.op_type for n in onnx.load(file.path).graph.node]
    assert kinds.count("HardSwish") == 2
    assert "Clip" not in kinds
    assert dict(file.summary().rows)["float"] == "2 hard_swish, 2 operators by the recipe"
    names = [row.name for row in file.verification.coverage.rows]
    assert names == ["0", "1", "2", "3", "4"]
    assert_near(file.path, model, batch)
