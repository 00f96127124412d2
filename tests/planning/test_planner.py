"""What runs in integers, what does not, and why."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.core.errors import PlanError
from qtool.core.types import Derived, Observed, ObserverSpec
from qtool.frontends.captured_model import capture_model
from qtool.planning.plan import Execution, Kind
from qtool.planning.planner import make_plan
from qtool.planning.targets import target
from tests.models.small import NETWORKS
from tests.passes.differential import Function
from tests.planning.planned import (
    MINMAX,
    canonical,
    network_graph,
    network_plan,
    plan,
    reads,
    table,
)

IMAGE = (2, 3, 6, 6)
X86 = target("onnxruntime")
TABLES = {
    "conv_bn_relu": ["0: conv integer -> float", "2: relu fused -> own"],
    "residual": [
        "stem: conv integer -> own",
        "conv1: conv integer -> float",
        "relu: relu fused -> own",
        "conv2: conv integer -> own",
        "add: add integer -> float",
        "relu_2: relu fused -> own",
        "adaptive_avg_pool2d: global_average_pool integer -> own",
        "view: pass pass -> as adaptive_avg_pool2d",
        "head: linear integer -> float",
    ],
    "concat": [
        "stem: conv integer -> float",
        "relu: relu fused -> own",  # read by two convolutions too
        "narrow: conv integer -> float",
        "relu_2: relu fused -> own",  # with the parameters of cat it would not be free any more
        "wide: conv integer -> as cat",
        "cat: concat integer -> own",
        "last: conv integer -> own",
    ],
    "separable": [
        "0: conv integer -> float",
        "2: clip fused -> own",
        "3: conv integer -> float",
        "5: clip fused -> own",
        "6: conv integer -> own",
    ],
    "transposed": [
        "0: conv_transpose weights -> float",
        "2: relu float -> own",  # quantized for the convolution behind it
        "3: conv integer -> own",
    ],
    "padded": [
        "1: conv integer -> float",
        "3: relu fused -> own",
        "4: global_average_pool integer -> own",
        "5: pass pass -> as 4",
        "7: linear integer -> float",
    ],
    "signal": ["0: conv integer -> float", "2: relu fused -> own", "3: max_pool pass -> as 2"],
    "volume": ["0: conv integer -> own", "2: global_average_pool integer -> own"],
    "linear_bn": [
        "0: linear integer -> float",
        "2: relu fused -> own",
        "3: linear integer -> float",
    ],
    "mlp_3d": [
        "0.flatten: pass pass -> as input",
        "0: linear integer -> float",
        "1: relu fused -> own",
        "2: linear integer -> float",
        "2.unflatten: pass float -> float",
    ],
    "nested_output": [
        "body: linear integer -> float",
        "relu: relu float -> float",
        "add: add float -> float",
        "mul: mul float -> float",
    ],
    "keywords": ["body: linear integer -> float", "mul: mul float -> float"],
    "two_inputs": [
        "image_2: conv integer -> own",
        "vector_2: linear integer -> own",
        "unsqueeze: pass pass -> as vector_2",
        "unsqueeze_2: pass pass -> as vector_2",
        "add: add integer -> float",
        "relu: relu fused -> own",
    ],
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    assert table(network_plan(name)) == TABLES[name]


def test_points_of_a_residual_network() -> None:
    found = network_plan("residual")
    assert reads(found) == {
        "x": ["stem"],
        "stem": ["add", "conv1"],
        "relu": ["conv2"],
        "conv2": ["add"],
        "relu_2": ["adaptive_avg_pool2d"],
        "adaptive_avg_pool2d": ["view"],
        "view": ["head"],
    }
    assert [p.name for p in found.observed()] == [n for n in reads(found) if n != "view"]
    weight, bias = found.point("conv1.weight"), found.point("conv1.bias")
    assert weight.spec == Observed(X86.types.weight, MINMAX, axis=0, symmetric=True)
    assert bias.spec == Derived("stem", "conv1.weight")
    assert {p.kind for p in found if p.name.endswith("weight")} == {Kind.WEIGHT}
    assert found.point("stem").spec == Observed(X86.types.activation, MINMAX)


def conv() -> nn.Module:
    return nn.Conv2d(3, 3, 1)


def _second_reader(x: torch.Tensor, conv: nn.Module, last: nn.Module) -> torch.Tensor:
    y = conv(x)
    return last(F.relu(y)) + y


def _also_returned(x: torch.Tensor, conv: nn.Module) -> tuple[torch.Tensor, ...]:
    y = conv(x)
    return F.relu(y), y


def _float_reader(x: torch.Tensor, conv: nn.Module, last: nn.Module) -> torch.Tensor:
    y = F.relu(conv(x))
    return last(y) + y.sin()


def _input_read_twice(x: torch.Tensor, conv: nn.Module) -> tuple[torch.Tensor, ...]:
    return conv(x), x.sin()


def _float_reader_of_linear(
    x: torch.Tensor, first: nn.Module, second: nn.Module
) -> tuple[torch.Tensor, ...]:
    y = first(x)
    return second(y), y.sin()


def _sum_for_a_norm(x: torch.Tensor, conv: nn.Module) -> torch.Tensor:
    """Between the blocks of a transformer: codes and floats are added, a norm reads the sum."""
    return F.layer_norm(conv(x) + x.sin(), x.shape[-1:])


def _sum_for_a_layer(x: torch.Tensor, conv: nn.Module, last: nn.Module) -> torch.Tensor:
    """As in a feature pyramid: what comes from a float operator is added, a layer reads the sum."""
    return last(F.max_pool2d(F.relu(conv(x) + x.sin()), 2))


def _two_heads(x: torch.Tensor, first: nn.Module, second: nn.Module) -> tuple[torch.Tensor, ...]:
    y = first(x)
    return y, second(y)


def _joined_heads(x: torch.Tensor, box: nn.Module, score: nn.Module) -> torch.Tensor:
    return torch.cat([box(x).flatten(2), score(x).sigmoid().flatten(2)], 1).permute(0, 2, 1)


def _joined_twice(x: torch.Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> torch.Tensor:
    return torch.cat([torch.cat([a(x), b(x)], 1).relu(), c(x)], 1)


def _joined_and_read(x: torch.Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> torch.Tensor:
    y = a(x)
    return torch.cat([c(torch.cat([y, b(x)], 1)), y], 1)


PATTERNS = {
    "relu, and a second reader of the conv": (
        lambda: Function(_second_reader, conv(), conv()),
        IMAGE,
        [
            "parts.0: conv integer -> own",
            "relu: relu float -> own",
            "parts.1: conv integer -> own",
            "add: add integer -> own",
        ],
    ),
    "relu of a conv that is an output too": (
        lambda: Function(_also_returned, conv()),
        IMAGE,
        ["parts.0: conv integer -> own", "relu: relu float -> float"],
    ),
    "clamp that is not from zero": (
        lambda: nn.Sequential(conv(), nn.Hardtanh(), conv()),
        IMAGE,
        ["0: conv integer -> own", "1: clip float -> own", "2: conv integer -> own"],
    ),
    "codes pass through": (
        lambda: nn.Sequential(conv(), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(1)),
        IMAGE,
        [
            "0: conv integer -> float",
            "1: relu fused -> own",
            "2: max_pool pass -> as 1",
            "3: pass pass -> as 1",
        ],
    ),
    "codes pass from the input": (
        lambda: nn.Sequential(nn.PixelShuffle(1), conv()),
        IMAGE,
        ["0: pass pass -> as input", "1: conv integer -> own"],
    ),
    "a pool of floats": (
        lambda: nn.Sequential(nn.MaxPool2d(2), conv()),
        IMAGE,
        ["0: max_pool float -> own", "1: conv integer -> own"],
    ),
    "float in front of a conv": (
        lambda: nn.Sequential(nn.Sigmoid(), conv()),
        IMAGE,
        ["0: sigmoid float -> own", "1: conv integer -> own"],
    ),
    "a relu behind a concat needs what is below zero in its inputs": (
        lambda: Function(
            lambda x, a, b, c: c(torch.cat([a(x), b(x)], 1).relu()),
            *(conv(), conv(), nn.Conv2d(6, 3, 1)),
        ),
        IMAGE,
        [
            "parts.0: conv integer -> own",
            "parts.1: conv integer -> own",
            "cat: concat integer -> float",
            "relu: relu fused -> own",
            "parts.2: conv integer -> own",
        ],
    ),
    "heads joined for the output keep parameters of their own": (
        lambda: Function(_joined_heads, conv(), conv()),
        IMAGE,
        [
            "parts.0: conv integer -> own",
            "view: pass pass -> as parts.0",
            "parts.1: conv integer -> own",
            "sigmoid: sigmoid integer -> own",
            "view_2: pass pass -> as sigmoid",
            "cat: concat float -> float",
            "permute: pass float -> float",
        ],
    ),
    "what is joined twice for the output is not joined in codes first": (
        lambda: Function(_joined_twice, conv(), conv(), conv()),
        IMAGE,
        [
            "parts.0: conv integer -> own",
            "parts.1: conv integer -> own",
            "cat: concat float -> float",
            "relu: relu float -> float",
            "parts.2: conv integer -> own",
            "cat_2: concat float -> float",
        ],
    ),
    "joined for a layer in codes, joined for the output in float": (
        lambda: Function(_joined_and_read, conv(), conv(), nn.Conv2d(6, 3, 1)),
        IMAGE,
        [
            "parts.0: conv integer -> own",
            "parts.1: conv integer -> as cat",
            "cat: concat integer -> own",
            "parts.2: conv integer -> own",
            "cat_2: concat float -> float",
        ],
    ),
    "joined for an operator in float": (
        lambda: Function(lambda x, a: torch.cat([a(x), x.exp()], 1).softmax(1), conv()),
        IMAGE,
        [
            "parts.0: conv integer -> own",
            "exp: exp float -> float",
            "cat: concat float -> float",
            "softmax: softmax float -> float",
        ],
    ),
    "joined for the output, with a light operator behind it": (
        lambda: Function(lambda x, a, b: torch.cat([a(x), b(x)], 1).sigmoid(), conv(), conv()),
        IMAGE,
        [
            "parts.0: conv integer -> own",
            "parts.1: conv integer -> own",
            "cat: concat float -> float",
            "sigmoid: sigmoid float -> float",
        ],
    ),
    "joined for a layer behind an operator between codes": (
        lambda: Function(
            lambda x, a, b, c: c(F.silu(torch.cat([a(x), b(x)], 1))),
            *(conv(), conv(), nn.Conv2d(6, 3, 1)),
        ),
        IMAGE,
        [
            "parts.0: conv integer -> as cat",
            "parts.1: conv integer -> as cat",
            "cat: concat integer -> own",
            "silu: silu float -> own",
            "parts.2: conv integer -> own",
        ],
    ),
    "linear that is an output and read in codes": (
        lambda: Function(_two_heads, nn.Linear(4, 4), nn.Linear(4, 4)),
        (2, 4),
        ["parts.0: linear integer -> own", "parts.1: linear integer -> float"],
    ),
    "padding with another number": (
        lambda: nn.Sequential(conv(), nn.ConstantPad2d(1, 0.5), conv()),
        IMAGE,
        ["0: conv integer -> own", "1: pad float -> own", "2: conv integer -> own"],
    ),
    "an operator without a row": (
        lambda: nn.Sequential(conv(), nn.Softplus(), conv()),
        IMAGE,
        ["0: conv integer -> own", "1: softplus float -> own", "2: conv integer -> own"],
    ),
}


@pytest.mark.parametrize(("model", "shape", "rows"), PATTERNS.values(), ids=PATTERNS)
def test_patterns(model: Callable[[], nn.Module], shape: tuple[int, ...], rows: list[str]) -> None:
    assert [row.replace(".default", "") for row in table(plan(model(), shape))] == rows


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param(
            lambda: Function(_float_reader, conv(), conv()),
            {
                "x": ["parts.0"],
                "relu": ["parts.1", "sin"],
                "parts.1": ["add"],
                "sin": ["add"],
                "add": ["(output)"],
            },
            id="what is had in codes only is read in codes by all",
        ),
        pytest.param(
            lambda: Function(_input_read_twice, conv()),
            {"x": ["parts.0"], "parts.0": ["(output)"]},
            id="a float reader of a float value sees the float value",
        ),
    ],
)
def test_readers(model: Callable[[], nn.Module], expected: dict[str, list[str]]) -> None:
    assert reads(plan(model(), IMAGE)) == expected


def test_a_sum_with_a_float_that_a_layer_reads_is_in_integers() -> None:
    found = plan(Function(_sum_for_a_layer, conv(), conv()), IMAGE)
    assert [d.execution for d in found.nodes if d.op == "add"] == [Execution.INTEGER]


@pytest.mark.parametrize(
    ("on", "readers"), [("onnxruntime", ["parts.1", "sin"]), ("tensorrt", ["parts.1"])]
)
def test_a_kernel_of_one_output_gives_codes_to_all_readers(on: str, readers: list[str]) -> None:
    """ONNX Runtime runs a Gemm that is read both ways in float; TensorRT gives both."""
    model = Function(_float_reader_of_linear, nn.Linear(4, 4), nn.Linear(4, 4))
    assert reads(plan(model, (2, 4), on=target(on)))["parts.0"] == readers


@pytest.mark.parametrize(
    ("on", "readers"), [("onnxruntime", {"parts.0": ["(output)", "relu"]}), ("tensorrt", {})]
)
def test_a_clamp_that_the_runtime_drops_leaves_its_reader_to_the_layer(
    on: str, readers: dict[str, list[str]]
) -> None:
    """Of a Gemm that is an output, too, ONNX Runtime would quantize the result a second time."""

    def both(x: torch.Tensor, a: nn.Module, b: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        return (y := a(x)), b(y.relu())

    found = reads(plan(Function(both, nn.Linear(4, 4), nn.Linear(4, 4)), (2, 4), on=target(on)))
    assert {name: users for name, users in found.items() if name == "parts.0"} == readers
    assert found["relu"] == ["parts.1"]


REASONS = {
    "no kernel": (lambda: nn.Sequential(conv(), nn.Softmax(1)), "1", "integer softmax is slower"),
    "a product of activations": (
        lambda: Function(lambda x, c: torch.matmul(c(x), x), conv()),
        "matmul",
        "not faster in integers",
    ),
    "no row": (
        lambda: Function(lambda x, c: c(x).sin(), conv()),
        "sin",
        "no integer kernel on onnxruntime",
    ),
    "plus a number": (lambda: Function(lambda x, c: c(x) + 1, conv()), "add", "a scalar"),
    "a sum for a norm": (
        lambda: Function(_sum_for_a_norm, conv()),
        "add",
        "one input is float and no layer reads the result",
    ),
    "alpha": (
        lambda: Function(lambda x, c: torch.add(c(x), x, alpha=2), conv()),
        "add.alpha",
        "one operand is a scalar",
    ),
    "another dtype": (
        lambda: Function(lambda x, c: c(x) + x.double(), conv()),
        "add",
        "float64, not float32",
    ),
    "a computed weight": (
        lambda: Function(lambda x, c: F.conv2d(c(x), x[:1, :, :1, :1]), conv()),
        "conv2d",
        "its weight is computed at run time",
    ),
    "an add far from integers": (
        lambda: Function(lambda x, c: (c(x), x + x.sin()), conv()),
        "add",
        "its inputs are float",
    ),
    "clamp": (lambda: nn.Sequential(conv(), nn.Hardtanh()), "1", "clamps in float"),
    "a clamp of floats": (
        lambda: nn.Sequential(nn.ReLU(), nn.Sigmoid(), conv()),
        "0",
        "its input is float",
    ),
}


@pytest.mark.parametrize(("model", "node", "reason"), REASONS.values(), ids=REASONS)
def test_reasons(model: Callable[[], nn.Module], node: str, reason: str) -> None:
    decision = plan(model(), (2, 3, 3, 3)).decision(node)
    assert decision.execution is Execution.FLOAT
    assert reason in decision.reason


def test_reasons_are_given_for_all_that_is_float() -> None:
    for name in NETWORKS:
        for decision in network_plan(name).nodes:
            assert bool(decision.reason) or decision.execution in (
                Execution.INTEGER,
                Execution.PASS,
            )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        pytest.param(
            lambda: nn.Sequential(nn.Sigmoid(), nn.Tanh()),
            r"on onnxruntime: 0 \(its inputs are float\); 1 \(.*keep it in float",
            id="only activations",
        ),
        pytest.param(
            lambda: nn.Softmax(1), "integer softmax is slower than the float one", id="no kernel"
        ),
        pytest.param(nn.Identity, "no operator with weights", id="nothing at all"),
        pytest.param(nn.Conv2d(3, 3, 1).double, "float64, not float32", id="float64"),
    ],
)
def test_nothing_to_quantize(model: Callable[[], nn.Module], message: str) -> None:
    made = model()
    x = torch.randn(IMAGE, dtype=next((p.dtype for p in made.parameters()), torch.float32))
    if x.dtype is torch.float64:
        made = nn.Sequential(Function(lambda x: x.double()), made)
    with pytest.raises(PlanError, match=message):
        plan(made, IMAGE)


def test_a_target_without_a_kernel() -> None:
    bare = replace(X86, name="bare", kernels={"conv": X86.kernels["conv"]}, no_kernel={})
    found = make_plan(network_graph("residual"), bare, MINMAX)
    assert found.target == "bare"
    decision = found.decision("head")
    assert (decision.execution, decision.reason) == (Execution.FLOAT, "no integer kernel on bare")


def test_channels_that_no_file_has_are_no_work() -> None:
    """A convolution of three channels is padded for the integer kernel alone."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    captured = qtool.capture_model(model.eval(), torch.zeros(2, 3, 6, 6))
    plans = [captured.plan(recipe=qtool.Recipe.of(ignore=i)) for i in ((), ("0",))]
    assert [p.decision("0").macs for p in plans] == [16 * 4 * 9 * 16, 16 * 3 * 9 * 16]


def test_planning_is_pure() -> None:
    graph = canonical(nn.Sequential(conv(), nn.ReLU(), conv()), IMAGE)
    before = str(graph)
    first, second = (make_plan(graph, X86, ObserverSpec("minmax")) for _ in range(2))
    assert first == second
    assert str(graph) == before


class Experts(nn.Module):
    """A mixture of experts: each sample has the weights that it chooses, of one stored tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.weights = nn.Linear(8, 8), nn.Parameter(torch.randn(3, 8, 4))
        self.each = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        chosen = torch.bmm(y.unsqueeze(1), self.weights[y.argmax(1) % 3])
        return (chosen @ torch.relu(y[:, :4, None])) * (chosen.unsqueeze(1) @ self.each).sum(1)


def test_products_say_whether_their_weights_are_chosen_or_made() -> None:
    found = capture_model(Experts().eval(), torch.randn(4, 8)).plan()
    reasons = [d.reason for d in found.nodes if d.op == "matmul"]
    assert reasons == [
        "its weights are selected at run time; integer kernels need constants",
        "a product of two activations is not faster in integers",
        "it has several weight matrices, which are small, shared or more than 64",
    ]


def test_attention_on_words_is_a_product_of_activations() -> None:
    words, layer = nn.Embedding(9, 8), nn.Linear(8, 8)
    model = Function(lambda x, words, layer: (y := layer(words(x))) @ y.mT, words, layer)
    found = capture_model(model.eval(), torch.randint(0, 9, (4, 5))).plan()
    (reason,) = [d.reason for d in found.nodes if d.op == "matmul"]
    assert reason == "a product of two activations is not faster in integers"
