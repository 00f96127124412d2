"""Free memory within the limits of control groups of both versions."""

from pathlib import Path

import pytest

from qtool.core.memory import available_memory

MIB = 1 << 20


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
