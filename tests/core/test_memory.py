"""Free memory within the limits of control groups of both versions; when garbage is collected."""

import gc
import weakref
from pathlib import Path

import pytest

from qtool.core import memory
from qtool.core.memory import _promote_survivors, available_memory, relaxed_gc, trim_memory

MIB = 1 << 20


class Circle:
    def __init__(self) -> None:
        self.own = self


def write(folder: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    write(tmp_path / "proc", {"meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB"})
    return tmp_path / "proc"


def test_without_groups_it_is_what_the_machine_has(proc: Path, tmp_path: Path) -> None:
    assert available_memory(proc, tmp_path / "none") == 8000 << 10
    assert available_memory(tmp_path / "none", tmp_path / "none") is None


def test_groups_of_version_2_and_those_around_them(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    write(proc, {"self/cgroup": "0::/outer/inner"})
    write(groups / "outer/inner", {"memory.max": "max", "memory.current": 2 * MIB})
    assert available_memory(proc, groups) == 8000 << 10
    outer = {"memory.max": 5 * MIB, "memory.current": 4 * MIB}
    write(groups / "outer", {**outer, "memory.stat": f"anon 7\ninactive_file {MIB}"})
    assert available_memory(proc, groups) == 2 * MIB


def test_groups_of_version_1_with_the_path_of_the_host(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    write(proc, {"self/cgroup": "3:cpu,memory:/docker/0123\n2:cpuset:/"})
    used = {"memory.usage_in_bytes": MIB, "memory.stat": f"total_inactive_file {MIB // 2}"}
    write(groups / "memory", {"memory.limit_in_bytes": 3 * MIB, **used})
    assert available_memory(proc, groups) == 2 * MIB + MIB // 2
    write(groups / "memory", {"memory.limit_in_bytes": 2**63 - 4096})
    assert available_memory(proc, groups) == 8000 << 10
    write(groups / "memory", {"memory.limit_in_bytes": MIB // 4})
    assert available_memory(proc, groups) == 0


def test_what_goes_in_circles_is_given_back_also_where_the_system_takes_no_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for trim in (None, lambda _: 1):
        monkeypatch.setattr("qtool.core.memory._MALLOC_TRIM", trim)
        gone = weakref.ref(Circle())
        trim_memory()
        assert gone() is None


def test_garbage_is_looked_for_rarely_and_never_where_a_person_wants_none() -> None:
    before = gc.get_threshold()
    try:
        for young, meanwhile in ((700, 100_000), (200_000, 200_000), (0, 0)):
            gc.set_threshold(young, 5, 6)
            with relaxed_gc():
                assert gc.get_threshold() == (meanwhile, 5, 6)
            assert gc.get_threshold() == (young, 5, 6)
    finally:
        gc.set_threshold(*before)


def test_what_was_made_is_old_afterwards_and_what_is_frozen_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_promote_survivors", _promote_survivors)
    gone: list[weakref.ref[Circle]] = []
    gc.unfreeze()  # what the tests exclude
    for frozen in (False, True):
        before = Circle()
        if frozen:
            gc.freeze()
        try:
            with relaxed_gc():
                gone.append(weakref.ref(Circle()))
            assert gone.pop()() is None
            assert frozen or gc.get_count()[2] == 0  # no walk through all that is comes next
            assert any(o is before for o in gc.get_objects()) != frozen
        finally:
            gc.unfreeze()
