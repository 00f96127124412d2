"""What a runtime says of itself."""

from __future__ import annotations

import pytest

from qtool.backends.runtime import Runtime


@pytest.mark.parametrize(
    ("version", "installed", "text"),
    [("1.2", True, "made-up 1.2"), (None, False, "made-up (not installed)")],
)
def test_a_runtime_that_is_there_and_one_that_is_not(
    version: str | None, installed: bool, text: str
) -> None:
    made = Runtime("made-up", "Made Up", "made_up", lambda: version, lambda _, arrays: [*arrays])
    assert made.installed is installed
    assert str(made) == text
    assert not made.graph_readable
