"""nn.Modules: what is captured, what is refused, and what the refusal says."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.frontends.torch.export_module import capture_module
from tests.models.small import NETWORKS, NestedOutput
from tests.named_cases import named_cases
from tests.passes.differential import Function, assert_same, captured_network

X = torch.linspace(-1, 1, 36).reshape(3, 3, 4)


def capture(model: nn.Module, *args: Any, dynamic: Any = None, **kwargs: Any) -> G.FloatGraph:
    return capture_module(model.eval(), Batch(args, kwargs), dynamic)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_is_the_model(name: str) -> None:
    network = NETWORKS[name]
    model, graph = captured_network(name)
    for size in (None, 5, 1):
        args, kwargs = network.example(size)
        assert_same(model, graph.module, args, kwargs, tolerance=1e-6)
    assert all(i.shape[0] == "batch" or i.shape[0].endswith("_batch") for i in graph.inputs)
    for node in graph.graph.nodes:
        assert node.op == "output" or G.value(node) is not None


@named_cases(
    "model, args, kwargs, inputs",
    ("the module's own name", nn.ReLU(), (X,), {}, ["input: float32[batch, 3, 4]"]),
    (
        "two, of one batch",
        NETWORKS["two_inputs"].make(),
        NETWORKS["two_inputs"].example()[0],
        {},
        ["image: float32[batch, 3, 6, 6]", "vector: float32[batch, 5]"],
    ),
    (
        "by name",
        NETWORKS["keywords"].make(),
        (),
        {"x": torch.ones(3, 6), "mask": torch.ones(3, 4)},
        ["x: float32[batch, 6]", "mask: float32[batch, 4]"],
    ),
    (
        "without the optional one",
        NETWORKS["keywords"].make(),
        (torch.ones(3, 6),),
        {},
        ["x: float32[batch, 6]"],
    ),
    ("a scalar", Function(lambda x: x * 2), (torch.tensor(3.0),), {}, ["x: float32[]"]),
    ("integers", Function(lambda x: x + 1), (torch.arange(3),), {}, ["x: int64[batch]"]),
    ("fixed by it", Function(lambda x: x.reshape(3, 12)), (X,), {}, ["x: float32[3, 3, 4]"]),
)
def test_inputs(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[str]
) -> None:
    graph = capture(model, *args, **kwargs)
    assert [str(i) for i in graph.inputs] == inputs


@named_cases(
    "function, names",
    ("a tensor", lambda x: x + 1, ["output"]),
    ("a tuple", lambda x: (x + 1, x - 1), ["output_0", "output_1"]),
    ("a list", lambda x: [x + 1], ["output_0"]),
    ("a dict", lambda x: {"a": x + 1, "b": x - 1}, ["a", "b"]),
    ("called like an input", lambda x: {"x": x + 1}, ["x_out"]),
    ("one in the other", lambda x: {"a": (x + 1, {"b": x - 1})}, ["a.0", "a.1.b"]),
    ("the input, twice", lambda x: (x, x), ["output_0", "output_1"]),
)
def test_outputs(function: Callable[[torch.Tensor], Any], names: list[str]) -> None:
    model = Function(function)
    graph = capture(model, X)
    assert list(graph.outputs) == names
    assert pytree.tree_structure(graph.module(X)) == pytree.tree_structure(model(X))


def test_nested_outputs_by_path() -> None:
    graph = capture(NestedOutput(), torch.ones(3, 6))
    assert graph.outputs == ("scores", "extra.signs", "extra.pair.0", "extra.pair.1")


def test_a_batch_of_one_stays_dynamic() -> None:
    graph = capture(NETWORKS["two_inputs"].model(), torch.ones(1, 3, 6, 6), torch.ones(1, 5))
    assert [i.shape[0] for i in graph.inputs] == ["batch", "batch"]
    assert len(graph.module(torch.ones(7, 3, 6, 6), torch.ones(7, 5))) == 7


def test_one_row_for_all_samples_is_no_batch_of_one() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return x * scale

    graph = capture(Scaled(), torch.ones(4, 3), torch.ones(1, 3))
    assert [str(i) for i in graph.inputs] == ["x: float32[batch, 3]", "scale: float32[1, 3]"]


@pytest.mark.parametrize("size", [1, 2])
def test_other_dynamic_dimensions(size: int) -> None:
    model = nn.Conv2d(3, 4, 3)
    dynamic = {"input": {0: "n", 2: "height", 3: "width"}}
    graph = capture(model, torch.ones(size, 3, 8, 9), dynamic=dynamic)
    assert graph.inputs[0].shape == ("n", 3, "height", "width")
    assert set(graph.dims.values()) == {"n", "height", "width"}
    assert_same(model, graph.module, (torch.randn(5, 3, 4, 17),))


def test_no_dynamic_dimension() -> None:
    graph = capture(nn.ReLU(), torch.ones(1, 3), dynamic={})
    assert graph.inputs[0].shape == (1, 3)


@named_cases(
    "dynamic, message",
    ("name", {"x": {0: "n"}}, "'x', which is not an input; the inputs are input"),
    ("rank", {"input": {4: "n"}}, "has no dimension 4: its shape"),
    ("size of one", {"input": {1: "n"}}, "dimension 1 .* at least 2"),
    ("from behind", {"input": {-1: "n"}}, "dimension -1"),
)
def test_bad_dynamic_dimensions(dynamic: dict[str, dict[int, str]], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture(nn.ReLU(), torch.ones(2, 1), dynamic=dynamic)


def test_a_dimension_that_the_model_fixes_cannot_be_dynamic() -> None:
    with pytest.raises(CaptureError, match=r"dimension 1 of input 'input' .* takes 4 only"):
        capture(nn.Linear(4, 2), torch.ones(2, 4), dynamic={"input": {0: "n", 1: "features"}})


class Norm(nn.BatchNorm2d):
    """A norm of the user's own, which is not put into eval mode below."""


def _norm_in_training() -> nn.Module:
    model = nn.Sequential(Norm(3)).eval()
    model[0].training = True
    return model


def _dropout_in_training() -> nn.Module:
    model = nn.Sequential(nn.ReLU(), nn.Dropout()).eval()
    model[1].train()
    return model


@named_cases(
    "model, message",
    ("a part of it", _dropout_in_training, r"module '1' \(Dropout\) is in training mode"),
    (
        "torch.cond",
        lambda: Function(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))).eval(),
        r"branch or loop inside \(torch.cond\)",
    ),
)
def test_refusals(model: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture_module(model(), Batch((X,)))


class _Moved(nn.Module):
    """Moves its tables to where its input is, as older transformers do."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.other = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.table.to(x.device)
        self.other = self.other.to(x.device, x.dtype)
        return x * self.table + self.other


def test_a_table_that_is_moved_to_its_own_device() -> None:
    graph = capture_module(_Moved().eval(), Batch((X,)))
    assert torch.equal(graph.module(X), X * torch.arange(4.0) + 1)


def test_a_norm_of_the_users_own_in_training_mode() -> None:
    with pytest.raises(CaptureError, match=r"changes its own buffers.*eval"):
        capture_module(_norm_in_training(), Batch((torch.randn(2, 3, 4, 4),)))


def test_inputs_that_the_model_writes_to() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        x *= 2
        return x + 1

    graph = capture(Function(double), X.clone())
    given = X.clone()
    assert torch.equal(graph.module(given), 2 * X + 1)
    assert torch.equal(given, X), "the user's data is only read"


def test_what_torch_cannot_make_functional_is_said() -> None:
    """An input called `input` that is written to is too much for torch.export."""
    with pytest.raises(CaptureError, match=r"in-place .*write to a copy"):
        capture(nn.Sequential(nn.ReLU6(inplace=True)), X)


def test_the_model_is_only_read() -> None:
    model = NETWORKS["residual"].model()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    graph = capture(model, torch.randn(2, 3, 8, 8))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert graph.graph.nodes


def test_checks_that_torch_adds_are_dropped() -> None:
    graph = capture(Function(lambda x: x.double().float() + 1), X)
    assert not [n for n in G.calls(graph.graph) if "assert" in str(n.target)]


class Masked(nn.Module):
    """nn.TransformerEncoder with a causal mask and a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.layers(x, causal, padding)


@pytest.mark.parametrize("trained", [True, False])
def test_transformers_of_torch_are_captured_layer_by_layer(trained: bool) -> None:
    model = Masked().eval().requires_grad_(trained)
    x, padding = torch.randn(2, 6, 8), torch.arange(6) >= torch.tensor([[4], [6]])
    with torch.set_grad_enabled(trained):
        dims = {0: "batch", 1: "time"}
        graph = capture_module(model, Batch((x, padding)), {"x": dims, "padding": dims})
    assert sum(n.target is torch.ops.aten.linear.default for n in G.calls(graph.graph)) == 4
    assert [i.shape[:2] for i in graph.inputs] == [("batch", "time")] * 2
    shorter = (x[:1, :5], padding[:1, :5])
    torch.testing.assert_close(graph.module(*shorter), model(*shorter))
    assert torch.backends.mha.get_fastpath_enabled()


class _Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x


class _Loop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x.max())):
            x = x + 1
        return x


class Traced(nn.Module):
    """Takes another way while it is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is not torch.Tensor:
            raise ValueError("this is no tensor")
        return x


def test_what_does_not_trace_is_refused_at_its_line_with_a_remedy() -> None:
    place = r"at \S*test_export_module\.py:\d+: raise ValueError"
    where = rf"{place}.*: this is no tensor; rewrite that code"
    with pytest.raises(CaptureError, match=where):
        capture_module(Traced().eval(), Batch((torch.ones(2, 3),)))


@pytest.mark.parametrize(
    ("model", "line"),
    [(_Branch(), "if x.sum() > 0:"), (_Loop(), "for _ in range(int(x.max())):")],
    ids=["branch", "loop"],
)
def test_decisions_by_data_are_refused_at_their_line(model: nn.Module, line: str) -> None:
    with pytest.raises(CaptureError) as refused:
        capture(model, X)
    message = str(refused.value)
    assert re.search(rf"test_export_module\.py:\d+: {re.escape(line)};", message)
    assert "torch.where, a loop by one of a fixed length" in message
