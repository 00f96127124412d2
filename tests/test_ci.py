"""`.ci/run` runs each command that `make help` lists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
SCRIPT = re.sub(r"#.*", "", (ROOT / ".ci/run").read_text("utf-8"))
TARGETS = re.findall(r"^([a-z]*):.*## ", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_runs(target: str) -> None:
    if re.search(rf"^\t@\$\(MAKE\).* {target}$", MAKEFILE, re.MULTILINE):
        return  # another target runs it
    lane = f"\n\t@.ci/lane {target}\n" in MAKEFILE
    assert re.search(rf"^.*\b{'lane' if lane else 'make'} {target}\b", SCRIPT, re.MULTILINE)


def test_there_are_targets() -> None:
    assert {"quickstart", "test", "matrix", "docs"} < set(TARGETS)
