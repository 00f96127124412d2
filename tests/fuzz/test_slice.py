"""A few random networks and graphs; hypothesis makes what fails smaller."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.checks import check_graph, check_network
from tests.fuzz.draws import draw_graph, draw_network
from tests.fuzz.oracle import Verdict, judged

FEW = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),  # a network takes as long as it takes
)


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore")  # of torch and numpy, about odd networks
@pytest.mark.parametrize(
    ("draw", "check"),
    [(draw_network, check_network), (draw_graph, check_graph)],
    ids=["networks", "graphs"],
)
def test_random_cases(draw: Callable[[Random], Any], check: Callable[[Any], Verdict]) -> None:
    @FEW
    @given(st.randoms(use_true_random=False))
    def run(random: Random) -> None:
        case = draw(random)
        verdict = check(case)
        assert verdict.kind in ("right", "noted", "float"), (verdict, case.to_json())

    run()


def test_what_no_sentence_tells_is_a_traceback() -> None:
    def broken() -> Verdict:
        raise KeyError("x")

    assert judged(broken).kind == "traceback"
    assert judged(broken).bad
