"""The float graph: what fits it, and the small edits every pass is made of."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import DataError
from qtool.core.graph import FloatGraph, torch_ops
from qtool.core.random_inputs import Input
from qtool.frontends.torch.export_module import capture_module
from tests.models.small import NETWORKS
from tests.passes.differential import Function

aten = torch.ops.aten
IMAGE, VECTOR = torch.ones(3, 3, 6, 6), torch.ones(3, 5)


@pytest.fixture(scope="module")
def two_inputs() -> FloatGraph:
    return capture_module(NETWORKS["two_inputs"].model(), Batch((IMAGE, VECTOR)))


@pytest.fixture(scope="module")
def keywords() -> FloatGraph:
    batch = Batch((torch.ones(3, 6),), {"mask": torch.ones(3, 4)})
    return capture_module(NETWORKS["keywords"].model(), batch)


@pytest.fixture
def graph() -> FloatGraph:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    return capture_module(model, Batch((IMAGE,)))


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(Batch((IMAGE, VECTOR)), id="by position"),
        pytest.param(Batch((), {"vector": VECTOR, "image": IMAGE}), id="by name"),
        pytest.param(Batch((IMAGE,), {"vector": VECTOR}), id="both"),
        pytest.param(Batch((IMAGE[:1], VECTOR[:1])), id="another batch"),
    ],
)
def test_bind(two_inputs: FloatGraph, batch: Batch) -> None:
    bound = two_inputs.bind(batch)
    assert [tuple(t.shape[1:]) for t in bound.args] == [(3, 6, 6), (5,)]
    assert not bound.kwargs
    two_inputs.module(*bound.args)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(Batch((torch.ones(3, 6), torch.ones(3, 4))), id="by position"),
        pytest.param(Batch((), {"mask": torch.ones(3, 4), "x": torch.ones(3, 6)}), id="by name"),
    ],
)
def test_bind_to_names(keywords: FloatGraph, batch: Batch) -> None:
    bound = keywords.bind(batch)
    assert len(bound.args) == 1
    assert list(bound.kwargs) == ["mask"]
    keywords.module(*bound.args, **bound.kwargs)


MISFITS = {
    "missing": (Batch((IMAGE,)), "batch 5 gives image; the model takes image, vector"),
    "nothing": (Batch(()), "batch 5 gives nothing; the model takes"),
    "unknown": (Batch((IMAGE,), {"vektor": VECTOR}), "gives image, vektor; the model takes"),
    "dtype": (
        Batch((IMAGE.int(), VECTOR)),
        "batch 5, input 'image' is int32, the model takes float32; convert it first",
    ),
    "size": (Batch((IMAGE, VECTOR[:, :4])), r"\[3, 4\], the model takes vector: float32\[batch, 5"),
    "rank": (Batch((IMAGE[0], VECTOR)), r"input 'image' has shape \[3, 6, 6\]"),
    "no tensor": (Batch((IMAGE, 3)), "input 'vector' is a int, not a tensor"),
    "list": (Batch((IMAGE, [VECTOR, VECTOR])), "has 3 tensors, the model takes 2"),
}


@pytest.mark.parametrize(("batch", "message"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit(two_inputs: FloatGraph, batch: Batch, message: str) -> None:
    with pytest.raises(DataError, match=message):
        two_inputs.bind(batch, index=5)


def test_inputs_print() -> None:
    assert str(Input("x", "float32", ("batch", 3))) == "x: float32[batch, 3]"


def test_same_sizes() -> None:
    assert G.same_sizes([2, 3], (2, 3))
    assert G.same_sizes([], [])
    assert not G.same_sizes([2, 3], [2, 4])
    assert not G.same_sizes([2], [2, 1])


def test_a_dynamic_size_is_no_number(graph: FloatGraph) -> None:
    """The captured batch is 3, as the number of channels is by chance."""
    (x,) = G.placeholders(graph.graph)
    batch, channels, *_ = G.shape(x)
    assert G.same_sizes([batch], [batch])
    assert not G.same_sizes([batch], [channels])
    assert not G.same_sizes([batch, channels], [channels, batch])
    assert isinstance(batch, torch.SymInt), "asking fixed nothing"


def conv_of(graph: FloatGraph) -> Any:
    return next(n for n in G.calls(graph.graph) if "conv" in str(n.target))


CALLS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "as its input": (lambda x, _: (aten.relu.default, (x,)), (3, 6, 6)),
    "pad": (lambda x, _: (aten.constant_pad_nd.default, (x, [1, 2, 3, 4], 0.0)), (3, 13, 9)),
    "reshape": (lambda x, _: (aten.reshape.default, (x, [-1, 108])), (108,)),
    "symmetric pads": (lambda _, conv: pad_call(conv, [1, 1, 1, 1]), (4, 6, 6)),
    "asymmetric pads": (lambda _, conv: pad_call(conv, [4, 1, 5, 2]), (4, 13, 7)),
}


def pad_call(conv: Any, pads: list[int]) -> Any:
    return torch_ops.conv, (*conv.args[:3], [1, 1], pads, [1, 1], 1)


@pytest.mark.parametrize(("make", "shape"), CALLS.values(), ids=CALLS)
def test_new_calls_keep_the_batch_dynamic(
    graph: FloatGraph, make: Callable[[Any, Any], Any], shape: tuple[int, ...]
) -> None:
    (x,), conv = G.placeholders(graph.graph), conv_of(graph)
    made = G.add_call(conv, *make(x, conv), "made.here", conv)
    assert isinstance(G.shape(made)[0], torch.SymInt)
    assert G.shape(made)[1:] == shape
    assert G.name_of(made) == "made.here"
    assert made.meta["nn_module_stack"] == conv.meta["nn_module_stack"]


def test_new_tensors(graph: FloatGraph) -> None:
    conv = conv_of(graph)
    parameter = G.add_tensor(graph.module, conv, nn.Parameter(torch.ones(4)), "0.new")
    buffer = G.add_tensor(graph.module, conv, torch.zeros(2, 2), "0.new")
    assert torch.equal(G.tensor(graph.module, parameter), torch.ones(4))
    assert torch.equal(G.tensor(graph.module, buffer), torch.zeros(2, 2))
    assert G.name_of(parameter) == G.name_of(buffer) == "0.new"
    assert parameter.target != buffer.target
    assert G.shape(buffer) == (2, 2)
    assert parameter.target in dict(graph.module.named_parameters())
    G.finish(graph.module)
    assert list(graph.module.state_dict()) == ["0.weight", "0.bias"], "nobody reads them"


@pytest.mark.parametrize(
    ("wanted", "name"),
    [("layer1.0.w", "layer1_0_w"), ("0.w", "t_0_w"), ("", "t"), ("taken", "taken_1")],
)
def test_free_names(wanted: str, name: str) -> None:
    module = nn.Module()
    module.taken = 1
    assert G.free_name(module, wanted) == name


def test_a_clone_is_another_graph_over_the_same_tensors(graph: FloatGraph) -> None:
    copy = G.clone(graph.module)
    x = torch.randn(5, 3, 6, 6)
    assert torch.equal(copy(x), graph.module(x))
    assert [G.name_of(n) for n in copy.graph.nodes] == [G.name_of(n) for n in graph.graph.nodes]
    assert copy.state_dict().keys() == graph.module.state_dict().keys()
    for key, value in graph.module.state_dict().items():
        assert value.data_ptr() == copy.state_dict()[key].data_ptr()
    relu = next(n for n in G.calls(copy.graph) if n.target is aten.relu.default)
    G.replace(relu, relu.args[0])
    G.finish(copy)
    assert copy(x).min() < 0 <= graph.module(x).min()


def test_a_clone_is_compiled_when_it_is_called(
    graph: FloatGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, generate = list[fx.Graph](), fx.Graph.python_code
    monkeypatch.setattr(
        fx.Graph, "python_code", lambda g, *a, **k: (compiled.append(g), generate(g, *a, **k))[1]
    )
    copy = G.clone(graph.module)
    G.finish(copy)
    assert not compiled
    copy(torch.randn(5, 3, 6, 6))
    copy(torch.randn(5, 3, 6, 6))
    assert compiled == [copy.graph]


@pytest.mark.parametrize("name", ["nested_output", "keywords"])
def test_a_clone_is_called_as_the_model_is(name: str) -> None:
    network = NETWORKS[name]
    graph = capture_module(network.model(), Batch(*network.example()))
    args, kwargs = network.example(2)
    found, expected = G.clone(graph.module)(*args, **kwargs), graph.module(*args, **kwargs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_outputs_in_order() -> None:
    graph = capture_module(NETWORKS["nested_output"].model(), Batch((torch.ones(3, 6),)))
    names = [G.name_of(n) for n in G.output_nodes(graph.graph)]
    assert names == ["body", "relu", "add", "mul"]


def test_arguments_by_position_or_name() -> None:
    model = Function(lambda x: torch.add(x, x, alpha=2)).eval()
    (add,) = G.calls(capture_module(model, Batch((IMAGE,))).graph)
    assert G.argument(add, 1, "other") is add.args[1]
    assert G.argument(add, 2, "alpha") == 2
    assert G.argument(add, 3, "nothing") is None
    assert G.argument(add, 3, "nothing", 7) == 7
    assert G.is_float(add)
    assert not G.is_float(3)


def test_a_shorter_batch(two_inputs: FloatGraph) -> None:
    short = two_inputs.head(two_inputs.bind(Batch((IMAGE, VECTOR))), 2)
    assert [len(t) for t in two_inputs.tensors_of(short)] == [2, 2]


def test_a_batch_of_fixed_size_stays_whole() -> None:
    model = Function(lambda x: x.reshape(3, 18, 6))
    graph = capture_module(model.eval(), Batch((IMAGE,)), {})
    whole = graph.head(Batch((IMAGE,)), 2)
    assert graph.module(*whole.args).shape == (3, 18, 6)
