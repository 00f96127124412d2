"""The order in which steps are computed around those that are stopped at."""

from __future__ import annotations

from qtool.core.graph.schedule import execution_order, schedule


def test_what_does_not_change_each_other_is_a_wave() -> None:
    # 1, 2 and 4 read 0; 3 reads 1; 5 adds 3 and 4, 6 reads 5
    reads = {1: [0], 2: [0], 3: [1], 4: [0], 5: [3, 4], 6: [5]}
    assert execution_order(reads, {1, 4, 6}) == [2, 1, 3, 4, 5, 6]
    assert schedule(reads, {1: [], 4: [], 6: []}) == [[2], [1, 4], [3], [5], [6]]
    assert schedule(reads, {1: [], 4: [3], 6: []}) == [[2], [1], [3], [4], [5], [6]]
