"""A few random networks and graphs in `make matrix`; hypothesis makes what fails smaller.

`make fuzz` runs more of them; see campaign.py.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.campaign import ROOMS
from tests.fuzz.oracle import Verdict, judged

FEW = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),  # a network takes as long as it takes
)


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore")  # of torch and numpy, about odd networks
@pytest.mark.parametrize("room", ROOMS)
def test_random_cases(room: str) -> None:
    @FEW
    @given(st.randoms(use_true_random=False))
    def run(random: Random) -> None:
        case = ROOMS[room].draw(random)
        verdict = ROOMS[room].check(case)
        assert not verdict.bad, (verdict, case.to_json())

    run()


@pytest.mark.parametrize("room", ROOMS)
def test_a_case_is_its_number(room: str) -> None:
    first, second = (ROOMS[room].draw(Random(5)) for _ in range(2))
    assert first == second
    assert ROOMS[room].read(first.to_json()) == first


def test_what_no_sentence_tells_is_a_traceback() -> None:
    def broken() -> Verdict:
        raise KeyError("x")

    assert judged(broken).kind == "traceback"
    assert judged(broken).bad
