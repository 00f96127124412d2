"""One odd session does not decide how fast a file is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qtool.analysis.latency import Ratio
from qtool.search import speeds


def test_the_middle_of_the_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, ratios = [], iter([(1.6, 3.0), (1.0, 3.2), (1.5, 3.1)])

    def timed(files: Any, inputs: Any, **options: Any) -> Any:
        seen.append(options["seconds"])
        found = [Ratio(m, m - 0.1, m + 0.1, m - 0.2, m + 0.2) for m in (1.0, *next(ratios))]
        return SimpleNamespace(ratios=tuple(found))

    monkeypatch.setattr(speeds, "timed", timed)
    one, two = speeds.speeds(Path("float"), [Path("a"), Path("b")], (), 0.3)
    assert (one.median, two.median) == (1.5, 3.1)
    assert (one.low, one.high) == (0.9, 1.7000000000000002)
    assert sum(seen) == pytest.approx(0.6), "as long as one session"
