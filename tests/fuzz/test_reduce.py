"""Failing cases get smaller, and keep failing in the same way."""

from random import Random

from tests.fuzz.draw_graphs import draw_graph
from tests.fuzz.draw_networks import draw_network
from tests.fuzz.graph import Graph
from tests.fuzz.network import Network
from tests.fuzz.oracle import Verdict
from tests.fuzz.reduce import reduced, smaller_graphs, smaller_networks


def of_op(op: str, case: Network | Graph) -> Verdict:
    steps = case.steps if isinstance(case, Network) else case.nodes
    if isinstance(case, Network):
        case.module()  # it has to be one
    return Verdict("codes" if any(s.op == op for s in steps) else "right")


def test_a_network_keeps_what_fails() -> None:
    cases = (draw_network(Random(i)) for i in range(99))
    case = next(c for c in cases if len(c.steps) > 4 and of_op("ReLU", c).bad)
    least = reduced(case, Verdict("codes"), lambda c: of_op("ReLU", c), smaller_networks)
    assert of_op("ReLU", least).bad
    assert len(least.steps) <= 2 < len(case.steps)
    assert not least.settings


def test_a_graph_keeps_what_fails() -> None:
    cases = (draw_graph(Random(i)) for i in range(99))
    case = next(c for c in cases if len(c.nodes) > 4 and of_op("Relu", c).bad)
    least = reduced(case, Verdict("codes"), lambda c: of_op("Relu", c), smaller_graphs)
    assert [n.op for n in least.nodes] == ["Relu"]
