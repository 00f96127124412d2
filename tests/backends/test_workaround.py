"""Workarounds: each row is complete, and one is dropped with the version that needs none."""

from __future__ import annotations

from pathlib import Path

import pytest

from qtool.backends import workaround
from qtool.backends.onnx.export.workarounds import ONNX_WORKAROUNDS
from qtool.backends.runtimes import RUNTIMES
from qtool.backends.workaround import Workaround, apply_workarounds

ROWS = [*ONNX_WORKAROUNDS, *(w for r in RUNTIMES.values() for w in r.workarounds)]
UPSTREAM = Path(__file__).parents[1] / "upstream"


def test_keys_are_unique() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS) == 6


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_each_defect_is_reproduced_and_has_a_link(row: Workaround) -> None:
    file, _, function = row.reproduction.partition("::")
    assert f"def {function}(" in (UPSTREAM / file).read_text("utf-8")
    assert row.upstream.startswith("https://github.com/") or row.key == "skip-layer-norms"


@pytest.mark.parametrize(
    ("installed", "since", "fixed_in", "applied"),
    [
        ("1.31.1", "", "", True),
        ("1.31.1", "", "1.32", True),
        ("1.32.0", "", "1.32", False),
        ("1.100.0", "", "1.32", False),
        ("", "1.30", "1.32", True),
        ("1.30.0", "1.30", "", True),
        ("1.29.0", "1.30", "", False),
    ],
)
def test_it_depends_on_the_version(
    installed: str, since: str, fixed_in: str, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workaround, "version_of", lambda package: installed)
    rewrite = lambda model: model.append("rewritten")  # noqa: E731
    row = Workaround("k", "p", "why", rewrite, "1.31", since, fixed_in)
    model: list[str] = []
    apply_workarounds(model, [row])
    assert bool(model) is applied
