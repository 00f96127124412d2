"""When a rank counts as gone; how all end then is tested with real processes beside this."""

from __future__ import annotations

from pathlib import Path

from qtool.atomic import scratch_folder
from qtool.ranks.watch import Watch


def test_a_rank_has_ended_when_its_lock_or_its_folder_is_gone(tmp_path: Path) -> None:
    (tmp_path / "unlocked").mkdir()
    with scratch_folder() as own:
        watch = Watch(None, 0, 5, 60)
        watch.know({1: own, 2: tmp_path / "unlocked", 3: tmp_path / "swept by another run"})
        assert [watch._ended(rank) for rank in range(1, 5)] == [False, True, True, False]
