"""The contract of passes: every way to break it is caught, and names the pass."""

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.core.errors import PassError
from qtool.passes import GraphPass, run_passes, same_function
from tests.named_cases import named_cases
from tests.passes.differential import captured

aten = torch.ops.aten
Rewrite = Callable[[fx.GraphModule], int]


def relu(module: fx.GraphModule) -> fx.Node:
    return next(n for n in G.calls(module.graph) if n.target is aten.relu.default)


def replace_relu(target: object, *more: object) -> Rewrite:
    def rewrite(module: fx.GraphModule) -> int:
        old = relu(module)
        G.replace(old, G.add_call(old, target, (old.args[0], *more), "new", old))
        return 1

    return rewrite


def _without_value(module: fx.GraphModule) -> int:
    old = relu(module)
    with module.graph.inserting_before(old):
        made = module.graph.call_function(aten.abs.default, (old.args[0],))
    old.args = (made,)
    return 1


def _an_input_less(module: fx.GraphModule) -> int:
    (node,) = G.placeholders(module.graph)
    node.replace_all_uses_with(G.add_tensor(module, node, torch.zeros(2, 3), "constant"))
    module.graph.erase_node(node)
    return 1


def _an_output_more(module: fx.GraphModule) -> int:
    output = module.graph.output_node()
    output.args = ((*output.args[0], relu(module)),)
    return 1


def _out_of_order(module: fx.GraphModule) -> int:
    relu(module).prepend(module.graph.output_node())
    return 1


@named_cases(
    "rewrite, message",
    ("another shape", replace_relu(aten.sum.dim_IntList, [1]), "changed the interface"),
    ("another dtype", replace_relu(aten.to.dtype, torch.float64), "changed the interface"),
    ("an input less", _an_input_less, "changed the interface"),
    ("an output more", _an_output_more, "changed the interface"),
    ("a node without a value", _without_value, "without a value"),
    ("it raises", lambda _: 1 // 0, "failed: .*division"),
    ("a graph that is not well formed", _out_of_order, "failed"),
    ("a leftover", lambda _: 0, r"left 0 \(aten.relu.default\) behind"),
)
def test_a_broken_contract_names_the_pass(rewrite: Rewrite, message: str) -> None:
    module = captured(nn.Sequential(nn.ReLU()), (2, 3)).module
    leftover = {"leftover": relu} if "behind" in message else {}
    with pytest.raises(PassError, match=f"pass breaker .*{message}"):
        run_passes(module, [GraphPass("breaker", rewrite, **leftover)])


def test_counts_in_order() -> None:
    module = captured(nn.Sequential(nn.ReLU()), (2, 3)).module
    passes = [GraphPass("gelu", replace_relu(aten.gelu.default)), GraphPass("nothing", lambda _: 0)]
    assert run_passes(module, passes) == {"gelu": 1, "nothing": 0}
    assert [G.name_of(n) for n in G.calls(module.graph)] == ["new"]


def test_what_a_pass_leaves_unused_is_removed() -> None:
    module = captured(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (2, 3)).module

    def cut(module: fx.GraphModule) -> int:
        node = relu(module)
        node.args = tuple(G.placeholders(module.graph))
        return 1

    run_passes(module, [GraphPass("cut", cut)])
    assert [str(n.target) for n in G.calls(module.graph)] == ["aten.relu.default"]
    assert not module.state_dict()


X = torch.tensor([[-1.0, 0.5], [2.0, 3.0]])  # a range of 4
INF, NAN = float("inf"), float("nan")


@named_cases(
    "expected, actual, worst",
    ("equal", X, X, 0),
    ("rounding", X, X + 2e-4, 5e-5),
    ("of the magnitude where that is larger", X + 1000, X + 1000.05, 5e-5),
    ("zeros", torch.zeros(3), torch.zeros(3), 0),
    ("empty", torch.zeros(0, 3), torch.zeros(0, 3), 0),
    ("integers", torch.tensor([1, 2]), torch.tensor([1, 2]), 0),
    ("infinities", torch.tensor([-INF, 1]), torch.tensor([-INF, 1]), 0),
    ("NaN in both", torch.tensor([NAN, 1]), torch.tensor([NAN, 1]), 0),
    ("nothing finite", torch.tensor([INF, INF]), torch.tensor([INF, INF]), 0),
)
def test_same_function(expected: torch.Tensor, actual: torch.Tensor, worst: float) -> None:
    assert same_function([expected], [actual]) == pytest.approx(worst, rel=0.01)


@named_cases(
    "actual",
    ("off by more than allowed", X + 5e-4),
    ("wrong sign", -X),
    ("NaN", X * NAN),
    ("infinite", X.where(X < 3, INF)),
    ("all infinite", torch.full((2, 2), -INF)),
)
def test_same_function_catches_a_wrong_rewrite(actual: torch.Tensor) -> None:
    with pytest.raises(PassError, match=r"output 1 .* bug in qtool"):
        same_function([X, X], [X, actual])


@pytest.mark.parametrize("tolerance", [1e-6, 1.0])
def test_tolerance_is_the_callers(tolerance: float) -> None:
    if tolerance < 1e-3:  # the difference below
        with pytest.raises(PassError):
            same_function([X], [X + 4e-3], tolerance)
    else:
        assert same_function([X], [X + 4e-3], tolerance) == pytest.approx(1e-3, rel=0.01)


def test_a_network_that_is_noisy_itself_may_differ_more() -> None:
    assert same_function([X], [X + 4e-3], noise=lambda: 2e-3) == pytest.approx(1e-3, rel=0.01)
    with pytest.raises(PassError, match=r"allowed: 5e-04"):
        same_function([X], [X + 4e-3], noise=lambda: 5e-4)


def test_where_a_model_overflows_depends_on_the_order() -> None:
    over = torch.tensor([1.0, float("inf"), float("nan"), 2.0])
    assert same_function([over], [torch.tensor([1.0, 3e38, 5.0, 2.0])]) == 0.0
    with pytest.raises(PassError):
        same_function([over], [torch.tensor([1.0, 3e38, 5.0, 2.5])])
    with pytest.raises(PassError):
        same_function([torch.ones(4)], [over])


def test_beyond_float32_is_no_bug_of_ours() -> None:
    with pytest.raises(PassError, match="order of its sums"):
        same_function([torch.tensor([torch.inf, 1.0, 2.0])], [torch.tensor([torch.inf, 1.0, 5.0])])
