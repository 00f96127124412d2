"""Arguments of graphs, and symbolic sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from qtool.core import graph as G
from qtool.core.errors import CaptureError
from qtool.core.graph.symbolic_sizes import symbolic_sizes

aten = torch.ops.aten


@pytest.fixture
def nodes() -> tuple[fx.Node, fx.Node]:
    """A concatenation along dimension 1, and a pad of what it computes."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    cat = graph.call_function(aten.cat.default, ([x, x], 1))
    return cat, graph.call_function(aten.constant_pad_nd.default, (cat, [0, 2], 0.5))


def test_each_type(nodes: tuple[fx.Node, fx.Node]) -> None:
    cat, pad = nodes
    assert G.sources(cat) == [cat.all_input_nodes[0]] * 2
    assert (G.integer(cat, 1), G.number(cat, 1), G.number(pad, 2)) == (1, 1.0, 0.5)
    assert G.source(pad) is cat
    assert G.integers(pad, 1) == G.items(pad, 1) == [0, 2]
    assert [a.name for a in G.schema(cat).arguments] == ["tensors", "dim"]
    x = torch.ones(1, 2)
    assert torch.equal(G.run_operator(cat, ([x, x],), {"dim": 0}), torch.ones(2, 2))


def test_another_type_is_a_bug(nodes: tuple[fx.Node, fx.Node]) -> None:
    _, pad = nodes
    for read, index in ((G.source, 1), (G.sources, 1), (G.integer, 2), (G.number, 1), (G.items, 0)):
        with pytest.raises(AssertionError, match="constant_pad_nd"):
            read(pad, index)


def sizes(*numbers: int) -> list[Any]:
    """A shape of which every size is dynamic."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return list(mode.from_tensor(torch.zeros(numbers), static_shapes=False).shape)


FORMULAS: dict[str, Callable[[int, int], int]] = {
    "a number": lambda n, m: 7,
    "one of them": lambda n, m: m,
    "a product": lambda n, m: n * m,
    "a sum": lambda n, m: n + m,
    "twice and one more": lambda n, m: 2 * n + 1,
    "half, rounded down": lambda n, m: m // 2,
    "half, rounded up": lambda n, m: -(-m // 2),
    "windows": lambda n, m: (m - 3) // 2 + 1,
    "two thirds": lambda n, m: 2 * m // 3,
}


@pytest.mark.parametrize("name", list(FORMULAS))
def test_the_expression_holds_at_other_sizes(name: str) -> None:
    formula = FORMULAS[name]
    shape = sizes(6, 11)
    ((found,),) = symbolic_sizes(lambda given: [(formula(*given[0]),)], [shape])
    symbols = [s.node.expr for s in shape]
    for n, m in ((6, 11), (5, 8), (40, 33), (2, 64)):
        values = dict(zip(symbols, (n, m), strict=True))
        at = found if isinstance(found, int) else int(found.node.expr.subs(values))
        assert at == formula(n, m)


@pytest.mark.parametrize(("hop", "length"), [(160, 8000), (441, 9001), (12, 40)])
def test_frames_of_a_sound_rise_by_one_per_hop(hop: int, length: int) -> None:
    """Near the example their number is one and the same."""
    shape = sizes(2, length)
    ((batch, frames),) = symbolic_sizes(lambda given: [(given[0][0], given[0][1] // hop)], [shape])
    values = [size.node.expr for size in shape]
    for n in (100, length - 1, length, 3 * length + 7):
        at = dict(zip(values, (5, n), strict=True))
        assert (batch.node.expr.subs(at), frames.node.expr.subs(at)) == (5, n // hop)


@pytest.mark.parametrize(("hop", "length"), [(160, 8000), (441, 9001), (12, 40)])
def test_samples_of_whole_frames_rise_by_a_hop(hop: int, length: int) -> None:
    """As where a network cuts what is left of a sound."""
    shape = sizes(2, length)
    ((whole,),) = symbolic_sizes(lambda given: [(given[0][1] // hop * hop - 5,)], [shape])
    for n in (hop, length - 1, length, 3 * length + 7):
        assert whole.node.expr.subs({shape[1].node.expr: n}) == n // hop * hop - 5


def test_an_empty_input_is_no_point() -> None:
    """ONNX Runtime ends the process on some, and gives other sizes on others."""
    shape = sizes(2, 6)

    def infer(given: Any) -> Any:
        asked.append(given)
        return [(given[0][0],)]

    asked: list[Any] = []
    with pytest.raises(CaptureError, match="empty at the sizes of the example"):
        symbolic_sizes(infer, [[shape[0], shape[1] // 100]])
    assert asked == []
    ((batch,),) = symbolic_sizes(infer, [[shape[0], 0]])  # a state without past tokens
    assert batch.node.expr == shape[0].node.expr


def test_what_nothing_fits_is_known_when_the_model_runs() -> None:
    assert symbolic_sizes(lambda given: [(given[0][0] ** 3,)], [sizes(6, 11)]) == [(None,)]


def test_what_values_decide_is_known_when_the_model_runs() -> None:
    assert symbolic_sizes(lambda given: [(None, 2)], [sizes(6, 11)]) == [(None, 2)]


def test_numbers_stay_numbers() -> None:
    assert symbolic_sizes(lambda given: [(given[0][0] + 1,)], [[3, 4]]) == [(4,)]


def test_sizes_that_do_not_go_together_are_said() -> None:
    def ask(given: Any) -> Any:
        raise CaptureError("no")

    with pytest.raises(CaptureError, match="no"):
        symbolic_sizes(ask, [sizes(6, 11)])
