"""The versions that pyproject.toml allows are the versions that are tested."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_REQUIREMENT = re.compile(r'^ +"([\w-]+)>=([\d.]+)"', re.MULTILINE)
_PIN = re.compile(r"^([\w-]+)==([\w.]+)$", re.MULTILINE)


def _table(name: str) -> dict[str, str]:
    """Return the lower bounds in a list of pyproject.toml (Python 3.10 has no tomllib)."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = re.search(rf"^{name} = \[.*?^\]", text, re.MULTILINE | re.DOTALL)
    assert lines
    return dict(_REQUIREMENT.findall(lines[0]))


def _pins(file: str) -> dict[str, str]:
    return {
        name.lower(): version
        for name, version in _PIN.findall((ROOT / file).read_text(encoding="utf-8"))
    }


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_the_oldest_versions_that_are_tested_are_the_lower_bounds() -> None:
    bounds = _table("dependencies") | _table("torch") | _table("hf")
    assert _pins("constraints-floor.txt") == bounds


def test_the_versions_that_are_tested_together_are_allowed() -> None:
    pins = _pins("constraints.txt")
    tables = map(_table, ("dependencies", "torch", "test", "dev"))
    bounds = {name: bound for table in tables for name, bound in table.items()}
    too_old = [n for n, bound in bounds.items() if _numbers(pins[n]) < _numbers(bound)]
    assert too_old == []
